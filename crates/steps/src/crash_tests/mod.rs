//! The plug is pulled at every operation of a run, in every world a power cut can leave, and the run is taken up
//! again: the end is the same, and nothing was done twice.

mod matrix;
mod random;
mod world;
