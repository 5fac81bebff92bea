//! Further ids of a session that its agent tells while it is loaded.

use frontdesk_core::lease::Phase;

use super::lane::Lane;

impl Lane {
    /// Ids that are new are claimed, and what comes under them is this session's.
    pub(super) fn follow_names(&mut self) {
        let live = self.session.phase() == Phase::Live;
        let instance = self.instance.as_ref().filter(|_| live);
        let aliases: &[String] = instance.map_or(&[], |_| &self.session.view().aliases);
        if *aliases == *self.names {
            return;
        }
        let more: Vec<String> =
            aliases.iter().filter(|id| !self.names.contains(id)).cloned().collect();
        self.names = aliases.to_vec();
        let Some(instance) = instance.filter(|_| !more.is_empty()).cloned() else { return };
        let (node, key) = (self.node.clone(), self.handle.key());
        let native = self.session.native().to_owned();
        instance.also_known(&native, more.iter().map(String::as_str));
        tokio::spawn(async move { node.learned_names(instance, native, key, more).await });
    }
}
