//! The file verbs. Each is a job (see work.rs); what they share is here: paths, entries, and words for errors.

pub mod directory;
pub mod entries;
pub mod listing;
pub mod making;
pub mod mount_points;

pub mod paths;
pub mod reading;
pub mod removal;
pub mod request;
pub mod temporary;
pub mod writing;
