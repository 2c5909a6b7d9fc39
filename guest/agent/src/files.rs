//! The file verbs: a job for each (see job.rs), and what the jobs share, such as paths and entries.

pub mod archive;
pub mod changing;
pub mod copying;
pub mod directory;
pub mod entries;
pub mod extract;
pub mod hidden_names;
pub mod listing;
pub mod location;
pub mod mkdir;
pub mod mount_points;
pub mod moving;
pub mod paths;
pub mod reading;
pub mod removal;
pub mod request;
pub mod stat;
pub mod tar;
pub mod temporary;
pub mod walk;
pub mod watching;
pub mod writing;
