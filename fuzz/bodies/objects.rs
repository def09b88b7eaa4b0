//! What the `objects_answer` target does with its input.

use landfall_objects::{page, refusal};

/// What a store may answer, of either kind: a listing, or why there is none.
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
