//! The binary as users run it: exit codes, what goes where, and what bad input does.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod agent_hub;
mod agent_node;
mod agent_serve;
mod bad_input;
mod command;
mod console;
mod controller;
mod controller_capi;
mod demo;
mod diagnose;
mod docs;
mod gateway;
mod gateway_host;
mod gather;
mod hub;
mod hub_page;
mod logging;
mod node_attack;
mod node_boot;
mod node_cluster;
mod node_fleet_lock;
mod node_hook;
mod node_in_place;
mod node_in_place_fleet;
mod node_in_place_password;
mod node_network;
mod node_prepare;
mod node_sysext;
mod node_user;
mod render;
mod render_tunnel;
mod tunnel;
mod usage;
