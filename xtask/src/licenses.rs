//! SPDX expressions of licenses.

/// Returns whether an SPDX expression can be satisfied by the list: one side of each `OR`, both sides of each
/// `AND`.
pub(crate) fn allowed(expression: &str, list: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    let mut tokens = expression.replace('(', " ( ").replace(')', " ) ");
    tokens = tokens.replace(" WITH ", "+WITH+");
    let tokens: Vec<&str> = tokens.split_whitespace().collect();
    let mut at = 0;
    let met = alternatives(&tokens, &mut at, list);
    met && at == tokens.len()
}

fn alternatives(tokens: &[&str], at: &mut usize, list: &[String]) -> bool {
    let mut met = conjunction(tokens, at, list);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        // Not short-circuited: the right side must also be consumed.
        met |= conjunction(tokens, at, list);
    }
    met
}

fn conjunction(tokens: &[&str], at: &mut usize, list: &[String]) -> bool {
    let mut met = term(tokens, at, list);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= term(tokens, at, list);
    }
    met
}

fn term(tokens: &[&str], at: &mut usize, list: &[String]) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if *token != "(" {
        let license = token.replace("+WITH+", " WITH ");
        return list.contains(&license);
    }
    let met = alternatives(tokens, at, list);
    let closed = tokens.get(*at) == Some(&")");
    *at += 1;
    met && closed
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions_are_judged_as_spdx_means_them() {
        let list =
            ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"].map(str::to_owned);
        for (expression, expected) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-or-later", false),
            ("GPL-3.0-or-later OR MIT", true),
            ("GPL-3.0-or-later AND MIT", false),
            ("ISC AND (Apache-2.0 OR GPL-2.0)", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(allowed(expression, &list), expected, "{expression}");
        }
    }
}
