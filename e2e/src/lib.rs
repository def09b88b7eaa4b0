//! Real components that are broken deliberately.
//!
//! Each entry of `breakages/*.toml` breaks one thing on a real node, or starts a real component with an
//! invalid setup. It then waits for the failure and names the cause that the diagnosis must find. The tests in
//! `tests/` collect with the product's own collector, diagnose, and compare.
//!
//! The components' logs are kept, trimmed, in `crates/diagnose/tests/fixtures/breakages`, so that the rules
//! are also tested where no component can run. `LANDFALL_SAVE_FIXTURES=1 cargo test -p landfall-e2e` rewrites
//! those files; `LANDFALL_BREAKAGE=name` runs a single entry.
