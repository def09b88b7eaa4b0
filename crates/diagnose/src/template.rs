//! `{name}` in titles and fixes.

use crate::pattern::Captures;

/// Fills in the names; `None` if one has no value, so that the caller can use a text without it.
pub(crate) fn fill(template: &str, values: &Captures) -> Option<String> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        text.push_str(&rest[..open]);
        let after = &rest[open + 1..];
        let close = after.find('}')?;
        // Backticks enclose names in our texts; one inside a name would end it.
        text.push_str(
            &values.get(&after[..close]).filter(|value| !value.trim().is_empty())?.replace('`', "'"),
        );
        rest = &after[close + 1..];
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_needs_a_value() {
        let values = Captures::from([("host".to_owned(), "api.example".to_owned())]);
        assert_eq!(
            fill("`{host}` does not resolve", &values).as_deref(),
            Some("`api.example` does not resolve")
        );
        assert_eq!(fill("`{host}` on {server}", &values), None);
        let blank = Captures::from([("host".to_owned(), "   ".to_owned())]);
        assert_eq!(fill("`{host}`", &blank), None);
        assert_eq!(fill("nothing to fill", &values).as_deref(), Some("nothing to fill"));
        assert_eq!(fill("open {host", &values), None);
        let quoted = Captures::from([("host".to_owned(), "a`b".to_owned())]);
        assert_eq!(fill("`{host}`", &quoted).as_deref(), Some("`a'b`"));
    }
}
