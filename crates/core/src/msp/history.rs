//! The history object of `session/read` and `session/fork`: what was served, and why not more.
//!
//! Two of the protocol's modes are served: `inline`, every item at its latest revision, where they
//! fit; else `none` with the reason. A `snapshot` needs an approval mode for every session, which
//! is told only where it is known, so it is not offered.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::view::Event;

/// Items at their latest revision, in the order they were opened, up to a size.
#[derive(Debug, Default)]
pub struct Items {
    order: Vec<String>,
    items: HashMap<String, (Value, usize)>,
    bytes: usize,
    bytes_max: usize,
    over: bool,
}

impl Items {
    /// Room for items whose JSON is at most `bytes_max` bytes long together.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Takes an event; others than those of items are passed over. An open item has what was
    /// streamed so far.
    pub fn take(&mut self, event: &Event) {
        if event.method == "item/delta" {
            return self.append(&event.params);
        }
        let item = &event.params["item"];
        let Some(id) = item["itemId"].as_str().filter(|_| !self.over) else { return };
        let bytes = item.to_string().len() + 1;
        let before = self.items.insert(id.to_owned(), (item.clone(), bytes));
        match before {
            Some((_, old)) => self.bytes -= old,
            None => self.order.push(id.to_owned()),
        }
        self.bytes += bytes;
        self.check();
    }

    fn append(&mut self, params: &Value) {
        let delta = params["delta"].as_str().unwrap_or_default();
        let Some((item, bytes)) = params["itemId"].as_str().and_then(|id| self.items.get_mut(id))
        else {
            return;
        };
        let field = match params["field"].as_str() {
            Some("summary.0") => "/summary/0",
            _ => "/text",
        };
        if let Some(Value::String(text)) = item.pointer_mut(field) {
            text.push_str(delta);
            // Its quotes are counted already.
            let grown = json!(delta).to_string().len() - 2;
            *bytes += grown;
            self.bytes += grown;
        }
        self.check();
    }

    fn check(&mut self) {
        if self.bytes > self.bytes_max {
            *self = Self { over: true, ..Self::default() };
        }
    }

    /// The history object.
    #[must_use]
    pub fn into_history(mut self) -> Value {
        if self.over {
            return none("historyBudget");
        }
        let items: Vec<Value> = self
            .order
            .iter()
            .filter_map(|id| self.items.remove(id))
            .map(|(item, _)| item)
            .collect();
        json!({ "mode": "inline", "items": items, "snapshot": null })
    }
}

/// No history, and the reason: `excluded` or `historyBudget`.
#[must_use]
pub fn none(reason: &str) -> Value {
    json!({ "mode": "none", "items": null, "snapshot": null, "noneReason": reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msp::ViewCursor;

    fn event(id: &str, revision: u64, text: &str) -> Event {
        let item = json!({ "itemId": id, "revision": revision, "text": text });
        let params = json!({ "item": item });
        Event { method: "item/completed", params, cursor: ViewCursor::default(), durable: true }
    }

    #[test]
    fn items_keep_their_order_and_their_last_revision() {
        let mut items = Items::new(1 << 20);
        for event in [event("a", 1, ""), event("b", 1, "x"), event("a", 2, "done")] {
            items.take(&event);
        }
        let history = items.into_history();
        assert_eq!(history["mode"], "inline");
        assert_eq!(history["items"][0]["text"], "done");
        assert_eq!(history["items"][1]["itemId"], "b");
        assert!(history.get("noneReason").is_none());
    }

    #[test]
    fn an_open_item_has_what_was_streamed_so_far() {
        let delta = |field: &str, delta: &str| Event {
            method: "item/delta",
            params: json!({ "itemId": "a", "field": field, "delta": delta }),
            ..event("a", 1, "")
        };
        let mut items = Items::new(1 << 20);
        items.take(&event("a", 1, ""));
        items.take(&delta("text", "one \u{1}"));
        items.take(&delta("text", "two"));
        items.take(&Event { params: json!({ "itemId": "b", "delta": "x" }), ..delta("text", "") });
        assert_eq!(items.bytes, items.items["a"].0.to_string().len() + 1);
        assert_eq!(items.into_history()["items"][0]["text"], "one \u{1}two");
        let mut small = Items::new(event("a", 1, "").params["item"].to_string().len() + 2);
        small.take(&event("a", 1, ""));
        small.take(&delta("text", "xx"));
        assert!(small.over);
    }

    #[test]
    fn what_does_not_fit_is_not_served_and_says_so() {
        let one = event("a", 1, "x");
        let size = one.params["item"].to_string().len() + 1;
        let mut fits = Items::new(size);
        fits.take(&one);
        assert!(!fits.over);
        let mut over = Items::new(size - 1);
        over.take(&one);
        over.take(&one);
        assert_eq!(over.into_history(), none("historyBudget"));
    }
}
