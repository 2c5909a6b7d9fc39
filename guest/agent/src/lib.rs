//! The program inside a capsule. From the loop down to the system calls:
//!
//! ```text
//!   main ─► boot (process 1 only) ─► agent: one thread, one epoll loop
//!             ┌─────────────────────────┴───────────────┐
//!        dispatcher: the host's frames         port, signals, timers, orphans
//!     ┌───────┼─────────────────┐
//!  tasks   supervisor        streams ─► outbox                   (flow control)
//!     │       ├─► launcher ─► spawn                              (starting)
//!     │       ├─► sessions ─► session ─► output, input, stdin, terminal, listeners, readers ─► output_log
//!     │       └─► kills, freezer, outside, cgroups, reap                (ending)
//!  workers ─► job: files, processes, ports, usage, growing                    (threads)
//!
//!  dispatcher ─► dials: connections to servers in the guest
//!  agent ─► gateway::process ─► gateway: a process of its own      (connections out of the guest)
//!
//!  dispatcher ─► wake ─► devices; best_effort ─► identity        (a thread of its own)
//! ```
//!
//! A part owns its state and takes what else it needs by argument. Timers, descriptors to close and orphaned pipes are
//! effects (effects.rs), which the loop carries out. docs/AGENT-PROTOCOL.md is the contract with the host.

pub mod accounts;
pub mod agent;
pub mod attributes;
pub mod best_effort;
pub mod boot;
pub mod c_strings;
pub mod cgroups;
pub mod closed_terminals;
pub mod command;
pub mod devices;
pub mod dials;
pub mod dispatcher;
pub mod effects;
pub mod epoll;
pub mod files;
pub mod frames;
pub mod freezer;
pub mod gateway;
pub mod growing;
pub mod halt;
pub mod hosts;
pub mod identity;
pub mod input;
pub mod job;
pub mod kept;
pub mod kills;
pub mod launcher;
pub mod listeners;
pub mod memory;
pub mod mounts;
pub mod options;
pub mod orphans;
pub mod outbox;
pub mod output;
pub mod output_log;
pub mod outside;

pub mod partial;
pub mod port;
pub mod ports;
pub mod process_tree;
pub mod processes;
pub mod protocol;
pub mod pty;
pub mod readers;
pub mod reap;
pub mod record;
pub mod request;
pub mod session;
pub mod sessions;
pub mod signals;
pub mod spawn;
pub mod start_times;
pub mod stdin;
pub mod stream;
pub mod streams;
pub mod supervisor;
pub mod sys;
pub mod tags;
pub mod tasks;
pub mod terminal;
pub mod timers;
pub mod usage;
pub mod wake;
pub mod workers;
