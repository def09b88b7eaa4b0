//! Real components, broken on purpose.
//!
//! Each entry of `breakages/*.toml` breaks one thing on a real node, or starts a real component in a way that cannot work,
//! lets it fail, and names the cause that the diagnosis must find. The tests in `tests/` do the rest: they collect with
//! the product's own collector, diagnose, and compare.
//!
//! What the components logged is kept, trimmed, in `crates/diagnose/tests/fixtures/breakages`, so that the rules are tested
//! against it where no component can run. `LANDFALL_SAVE_FIXTURES=1 cargo test -p landfall-e2e` writes those files anew;
//! `LANDFALL_BREAKAGE=name` runs one entry alone.
