//! Tests of a whole shard on the simulated disk: appends and reads against a model, restarts, crashes, power cuts,
//! damage. `rig` drives a shard as the engine does.

mod by_properties;
mod crash;
mod damage;
mod flow;
mod java;
mod light;
mod look_ahead;
mod mutants;
mod rig;
