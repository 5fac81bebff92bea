//! What agents tell many sessions alike, kept once.
//!
//! Options and commands of an agent's sessions are mostly the same, and they are most of what a view
//! of a live session holds.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use serde_json::{Map, Value};

use super::View;

/// Different options, and different commands, that are known again; the oldest are forgotten first,
/// and sessions that have them keep them.
pub const COMMON_MAX: usize = 16;

/// Options and commands that live sessions have. It keeps none of them for longer than they do.
#[derive(Debug, Default)]
pub struct Common {
    options: VecDeque<Weak<Map<String, Value>>>,
    commands: VecDeque<Weak<str>>,
}

impl Common {
    /// Has a view hold what others hold already, where that is equal. A view that is shared is not
    /// copied for nothing.
    pub fn share(&mut self, view: &mut Arc<View>) {
        let options = known(&mut self.options, &view.options);
        let commands = view.commands.as_ref().map(|told| known(&mut self.commands, told));
        let is_same = Arc::ptr_eq(&options, &view.options)
            && view.commands.as_ref().map(Arc::as_ptr) == commands.as_ref().map(Arc::as_ptr);
        if !is_same {
            let view = Arc::make_mut(view);
            (view.options, view.commands) = (options, commands);
        }
    }
}

/// What is kept that is equal to what was told; else that, which is kept from now on.
fn known<T: ?Sized + PartialEq>(kept: &mut VecDeque<Weak<T>>, told: &Arc<T>) -> Arc<T> {
    kept.retain(|one| one.strong_count() > 0);
    let equal = kept.iter().filter_map(Weak::upgrade).find(|one| **one == **told);
    equal.unwrap_or_else(|| {
        if kept.len() >= COMMON_MAX {
            kept.pop_front();
        }
        kept.push_back(Arc::downgrade(told));
        told.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(mode: &str, commands: Option<&str>) -> Arc<View> {
        let mut view = View { commands: commands.map(Into::into), ..View::default() };
        Arc::make_mut(&mut view.options).insert("modes".into(), mode.into());
        Arc::new(view)
    }

    #[test]
    fn what_is_equal_is_kept_once_and_what_is_not_stays() {
        let mut common = Common::default();
        let (mut one, mut two, mut three) =
            (view("a", Some("c")), view("a", Some("c")), view("b", None));
        for view in [&mut one, &mut two, &mut three] {
            common.share(view);
        }
        assert!(Arc::ptr_eq(&one.options, &two.options));
        assert_eq!(one.commands.as_ref().map(Arc::as_ptr), two.commands.as_ref().map(Arc::as_ptr));
        assert_eq!((&three.options["modes"], &three.commands), (&Value::from("b"), &None));
        // One that changes leaves the others as they are.
        Arc::make_mut(&mut Arc::make_mut(&mut two).options).clear();
        assert_eq!(one.options["modes"], "a");
    }

    #[test]
    fn nothing_is_kept_that_no_session_has_and_no_more_than_the_limit() {
        let mut common = Common::default();
        common.share(&mut view("gone", None));
        let mut views: Vec<_> =
            (0..=COMMON_MAX).map(|mode| view(&mode.to_string(), None)).collect();
        views.iter_mut().for_each(|view| common.share(view));
        assert_eq!(common.options.len(), COMMON_MAX);
        let (mut oldest, mut newest) = (view("0", None), view(&COMMON_MAX.to_string(), None));
        common.share(&mut newest);
        assert!(Arc::ptr_eq(&newest.options, &views[COMMON_MAX].options));
        common.share(&mut oldest);
        assert!(!Arc::ptr_eq(&oldest.options, &views[0].options), "it was forgotten");
    }

    #[test]
    fn a_view_that_is_shared_is_copied_only_for_news() {
        let mut common = Common::default();
        let mut first = view("a", None);
        let shown = first.clone();
        common.share(&mut first);
        assert!(Arc::ptr_eq(&first, &shown));
    }
}
