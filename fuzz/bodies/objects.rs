//! Body of the `objects_answer` target.

use landfall_fetch::objects::{page, refusal};

/// Any response from a store of either kind: a listing or an error.
pub(crate) fn answer(bytes: &[u8]) {
    if let Ok(page) = page(bytes) {
        assert!(page.objects.len() <= 1000 && page.objects.len() <= bytes.len());
        assert!(page.next.is_none_or(|next| !next.is_empty()), "the next page is asked for with something");
    }
    let (code, words) = refusal(bytes);
    for said in [code, words] {
        assert!(said.chars().count() <= 300 && !said.contains(char::is_control), "{said}");
    }
}
