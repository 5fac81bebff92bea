//! Pages of `session/list`. Pure.

use serde_json::{Value, json};

use super::store::{Summary, instant};

/// Rows in one page of `session/list`.
const PAGE_ROWS: usize = 50;

/// One page of a list that is sorted newest first.
pub(super) fn page(rows: &[Summary], cwd: Option<&str>, after: Option<&(i64, String)>) -> Value {
    let same_folder =
        |row: &&Summary| cwd.is_none_or(|cwd| trim_slashes(cwd) == trim_slashes(&row.cwd));
    let behind = |row: &&Summary| {
        after.is_none_or(|(us, id)| (row.updated_us, row.id.as_str()) < (*us, id.as_str()))
    };
    let mut rest = rows.iter().filter(same_folder).filter(behind);
    let shown: Vec<&Summary> = rest.by_ref().take(PAGE_ROWS).collect();
    let sessions: Vec<Value> = shown
        .iter()
        .map(|row| {
            let mut info = json!({
                "sessionId": row.id, "cwd": row.cwd, "updatedAt": instant(row.updated_us),
            });
            if let Some(title) = &row.title {
                info["title"] = json!(title);
            }
            if !row.aliases.is_empty() {
                info["aliases"] = json!(row.aliases);
            }
            if !row.directories.is_empty() {
                info["additionalDirectories"] = json!(row.directories);
            }
            info
        })
        .collect();
    let mut result = json!({ "sessions": sessions });
    if let (Some(_), Some(last)) = (rest.next(), shown.last()) {
        result["nextCursor"] = json!(format!("{}~{}", last.updated_us, last.id));
    }
    result
}

/// Reads the cursor of a page; `None` if it is none of ours.
pub(super) fn read_cursor(cursor: &str) -> Option<(i64, String)> {
    let (us, id) = cursor.split_once('~')?;
    Some((us.parse().ok()?, id.to_owned()))
}

fn trim_slashes(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        trimmed => trimmed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: i64) -> Vec<Summary> {
        let row = |at: i64| Summary {
            id: format!("s{at:03}"),
            cwd: if at % 2 == 0 { "/even/" } else { "/odd" }.into(),
            // Pairs share an instant: the cursor must not lose or repeat one of them.
            updated_us: at / 2,
            ..Summary::default()
        };
        (0..count).rev().map(row).collect()
    }

    fn walk(rows: &[Summary], cwd: Option<&str>) -> Vec<usize> {
        let mut after = None;
        let mut pages = Vec::new();
        loop {
            let result = page(rows, cwd, after.as_ref());
            pages.push(result["sessions"].as_array().unwrap().len());
            match result["nextCursor"].as_str() {
                Some(cursor) => after = read_cursor(cursor),
                None => return pages,
            }
        }
    }

    #[test]
    fn pages_hold_every_row_once() {
        assert_eq!(walk(&rows(0), None), [0]);
        assert_eq!(walk(&rows(50), None), [50]);
        assert_eq!(walk(&rows(51), None), [50, 1]);
        assert_eq!(walk(&rows(130), None), [50, 50, 30]);
        assert_eq!(walk(&rows(130), Some("/even")), [50, 15]);
        assert_eq!(walk(&rows(130), Some("/odd//")), [50, 15]);
        assert_eq!(walk(&rows(130), Some("/")), [0]);
    }

    #[test]
    fn cursors_of_others_are_refused() {
        for bad in ["", "x", "1", "x~y", "99999999999999999999~a"] {
            assert_eq!(read_cursor(bad), None, "{bad:?}");
        }
    }
}
