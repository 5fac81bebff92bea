//! Reading the params of a method: each reader says what is wrong with which member.
//!
//! Optional members may be left out; where the protocol tolerates `null` for one it means the same,
//! and these readers tolerate it everywhere. Members they do not know are ignored.

use serde_json::{Map, Value};

use super::errors::MspError;

/// The params of a request.
pub type Params = Map<String, Value>;

/// Typed access to the members of an object.
pub trait Read {
    /// A member that is there and not `null`.
    fn member(&self, name: &str) -> Option<&Value>;

    /// A string.
    ///
    /// # Errors
    /// `-32602` if it is of another type.
    fn text(&self, name: &str) -> Result<Option<&str>, MspError> {
        self.typed(name, "a string", Value::as_str)
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// `-32602` if it is absent or of another type.
    fn needed(&self, name: &str) -> Result<&str, MspError> {
        self.text(name)?.ok_or_else(|| MspError::invalid(format!("params.{name} is needed")))
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// `-32602` if it is of another type.
    fn flag(&self, name: &str) -> Result<Option<bool>, MspError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A whole number from `low` to `high`.
    ///
    /// # Errors
    /// `-32602` if it is something else.
    fn number(&self, name: &str, low: u64, high: u64) -> Result<Option<u64>, MspError> {
        let wanted = format!("a whole number from {low} to {high}");
        self.typed(name, &wanted, |value| value.as_u64().filter(|n| (low..=high).contains(n)))
    }

    /// An object.
    ///
    /// # Errors
    /// `-32602` if it is of another type.
    fn object(&self, name: &str) -> Result<Option<&Params>, MspError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A list of strings; empty where it is absent.
    ///
    /// # Errors
    /// `-32602` if it is something else.
    fn strings(&self, name: &str) -> Result<Vec<String>, MspError> {
        let list = self.typed(name, "a list of strings", |value| {
            let items = value.as_array()?.iter();
            items.map(|item| item.as_str().map(ToOwned::to_owned)).collect::<Option<Vec<_>>>()
        })?;
        Ok(list.unwrap_or_default())
    }

    /// A member of the type that `as_type` takes.
    ///
    /// # Errors
    /// `-32602` if it is of another type.
    fn typed<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        as_type: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, MspError> {
        let Some(value) = self.member(name) else { return Ok(None) };
        let read = as_type(value);
        read.map(Some).ok_or_else(|| MspError::invalid(format!("params.{name} must be {wanted}")))
    }
}

impl Read for Params {
    fn member(&self, name: &str) -> Option<&Value> {
        self.get(name).filter(|value| !value.is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_reader_names_the_member_that_is_wrong() {
        let Value::Object(params) =
            json!({ "a": 1, "b": null, "list": ["x", 1], "n": 201, "half": 1.5 })
        else {
            panic!("no object")
        };
        assert_eq!(params.text("b").unwrap(), None);
        assert_eq!(params.flag("absent").unwrap(), None);
        assert!(params.text("a").unwrap_err().message.contains("params.a must be a string"));
        assert!(params.strings("list").unwrap_err().message.contains("params.list"));
        assert!(params.number("n", 1, 200).unwrap_err().message.contains("from 1 to 200"));
        assert!(params.number("half", 1, 200).is_err());
        assert_eq!(params.number("n", 1, 201).unwrap(), Some(201));
        assert!(params.needed("b").unwrap_err().message.contains("params.b is needed"));
        assert!(params.object("a").is_err());
    }
}
