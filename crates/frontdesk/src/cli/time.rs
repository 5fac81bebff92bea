//! Instants as people read them: "3 min ago". `--json` has the exact ones.

use jiff::{SignedDuration, Timestamp};

/// What is shown where an instant is unknown.
pub(crate) const UNKNOWN: &str = "-";

/// How long ago an RFC 3339 instant was; `-` where there is none or it cannot be read.
pub(crate) fn ago(then: Option<&str>, now: Timestamp) -> String {
    let Some(then) = then.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return UNKNOWN.to_owned();
    };
    let age = now.duration_since(then);
    if age.as_secs() < -5 {
        return format!("in {}", span(SignedDuration::ZERO - age));
    }
    if age.as_secs() < 2 { "now".to_owned() } else { format!("{} ago", span(age)) }
}

/// A length of time in its largest fitting unit, rounded down.
pub(crate) fn span(length: SignedDuration) -> String {
    let seconds = length.as_secs().max(0);
    match seconds {
        0 => format!("{} ms", length.as_millis().max(0)),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        86_400..2_592_000 => plural(seconds / 86_400, "day"),
        2_592_000..31_536_000 => plural(seconds / 2_592_000, "month"),
        _ => plural(seconds / 31_536_000, "year"),
    }
}

/// A number of milliseconds as a length of time.
pub(crate) fn span_ms(ms: u64) -> String {
    span(SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX)))
}

/// A count with its word: `1 session`, `2 sessions`.
pub(crate) fn plural(count: i64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_like_speech() {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        for (then, want) in [
            ("2026-11-30T12:00:00Z", "now"),
            ("2026-11-30T11:59:59.5Z", "now"),
            ("2026-11-30T11:59:48Z", "12 s ago"),
            ("2026-11-30T11:57:00.1Z", "2 min ago"),
            ("2026-11-30T06:59:00Z", "5 h ago"),
            ("2026-11-30T13:30:00+02:00", "30 min ago"),
            ("2026-11-29T11:00:00Z", "1 day ago"),
            ("2026-10-01T00:00:00Z", "2 months ago"),
            ("2020-01-01T00:00:00Z", "6 years ago"),
            ("2026-11-30T12:00:03Z", "now"),
            ("2026-11-30T12:10:00Z", "in 10 min"),
        ] {
            assert_eq!(ago(Some(then), now), want, "{then}");
        }
    }

    #[test]
    fn an_unknown_instant_is_a_dash() {
        let now = Timestamp::UNIX_EPOCH;
        for bad in [None, Some(""), Some("yesterday"), Some("2026-13-01T00:00:00Z")] {
            assert_eq!(ago(bad, now), UNKNOWN);
        }
    }

    #[test]
    fn spans_never_overflow() {
        assert_eq!(span_ms(0), "0 ms");
        assert_eq!(span_ms(999), "999 ms");
        assert_eq!(span_ms(61_000), "1 min");
        assert!(span_ms(u64::MAX).ends_with("years"));
    }
}
