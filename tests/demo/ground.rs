//! Where the runs of all stories take place.

use std::path::Path;

use pg_once_tests::Cluster;

use crate::settings::{Paths, Settings};

pub struct Ground<'a> {
    pub settings: &'a Settings,
    pub paths: &'a Paths,
    pub cluster: &'a Cluster,
    /// The directory of the processes, ours alone.
    pub work: &'a Path,
}
