//! Runs the inputs of the fuzz targets without a fuzzer.

mod in_place;
#[path = "../../../../../fuzz/bodies/inputs.rs"]
mod inputs;
mod prepare;
