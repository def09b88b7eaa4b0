use std::error::Error;
use std::fmt;

/// Maximum number of causes in the output; a longer chain is a cycle or a defect, and its end adds no information.
const MAX_DEPTH: usize = 32;

/// Formats an error and all its causes on one line, each once.
///
/// Errors of this project never print their source in `Display`, so the code that prints an error must walk the chain.
/// Only this function does:
///
/// ```
/// let error = std::io::Error::other("disk gone");
/// assert_eq!(landfall_model::chain(&error).to_string(), "disk gone");
/// ```
pub fn chain(error: &dyn Error) -> Chain<'_> {
    Chain(error)
}

/// The result of [`chain`].
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(&'a dyn Error);

// === impl Chain ===

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut previous = self.0.to_string();
        f.write_str(&one_line(&previous))?;
        for cause in std::iter::successors(self.0.source(), |error| (*error).source()).take(MAX_DEPTH) {
            let text = cause.to_string();
            // Errors of other crates often include their source in their own text; do not repeat it.
            if !text.is_empty() && !previous.ends_with(&text) {
                write!(f, ": {}", one_line(&text))?;
            }
            previous = text;
        }
        Ok(())
    }
}

fn one_line(text: &str) -> String {
    text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    fn link(texts: &[&'static str]) -> Link {
        Link { text: texts[0], source: (texts.len() > 1).then(|| Box::new(link(&texts[1..]))) }
    }

    #[test]
    fn the_whole_chain_is_printed_on_one_line() {
        let error = link(&["read the rules", "parse `a.toml`", "line 3\n  unexpected `=`"]);
        assert_eq!(chain(&error).to_string(), "read the rules: parse `a.toml`: line 3 unexpected `=`");
    }

    #[test]
    fn a_source_already_told_is_not_repeated() {
        assert_eq!(chain(&link(&["open: denied", "denied"])).to_string(), "open: denied");
    }
}
