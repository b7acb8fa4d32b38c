//! Which processors this process may use, and pinning a thread to one.

use std::path::Path;

/// The processors in this process's affinity mask, ascending. Never empty.
pub fn allowed_cpus() -> Vec<usize> {
    let mut cpus: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
    cpus.sort_unstable();
    cpus.dedup();
    if cpus.is_empty() {
        cpus.push(0);
    }
    cpus
}

/// How many cores to use when nobody says: the smaller of the affinity mask and the CPU quota of the control group,
/// rounded down, at least 1.
pub fn default_core_count() -> usize {
    let allowed = allowed_cpus().len();
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match cgroup_quota(Path::new("/sys/fs/cgroup"), &membership) {
        Some(cpus) => allowed.min((cpus.floor() as usize).max(1)),
        None => allowed,
    }
}

/// Pins the calling thread to a processor. `false`: the system refused (for example: not in the mask).
pub fn pin_current_thread(cpu: usize) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

/// The smallest CPU quota, in processors, of the process's control group and those above it; `None` without one.
/// `root` is where control groups are mounted, `membership` the text of `/proc/self/cgroup`.
fn cgroup_quota(root: &Path, membership: &str) -> Option<f64> {
    let mut smallest: Option<f64> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == "cpu") {
            continue;
        }
        let base = if unified { root.to_owned() } else { root.join("cpu") };
        // Inside a container the named group may not be visible: its own files then stand at the mount's root.
        for folder in Path::new(group.trim_start_matches('/')).ancestors().map(|part| base.join(part)) {
            let quota = if unified { quota_v2(&folder) } else { quota_v1(&folder) };
            if let Some(cpus) = quota {
                smallest = Some(smallest.map_or(cpus, |least| least.min(cpus)));
            }
        }
    }
    smallest
}

/// `cpu.max` is "max 100000" or "quota period", in microseconds.
fn quota_v2(folder: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

fn quota_v1(folder: &Path) -> Option<f64> {
    let quota = std::fs::read_to_string(folder.join("cpu.cfs_quota_us")).ok()?;
    let period = std::fs::read_to_string(folder.join("cpu.cfs_period_us")).ok()?;
    ratio(quota.trim(), period.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    #[test]
    fn quotas_of_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(cgroup_quota(root, "0::/a/b\n"), None);
        write(root, "a/cpu.max", "150000 100000\n");
        write(root, "a/b/cpu.max", "max 100000\n");
        assert_eq!(cgroup_quota(root, "0::/a/b\n"), Some(1.5), "the parent's holds too");
        write(root, "cpu.max", "50000 100000\n");
        assert_eq!(cgroup_quota(root, "0::/elsewhere\n"), Some(0.5));
        write(root, "cpu/docker/x/cpu.cfs_quota_us", "300000\n");
        write(root, "cpu/docker/x/cpu.cfs_period_us", "100000\n");
        assert_eq!(cgroup_quota(root, "4:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n"), Some(3.0));
        write(root, "cpu/docker/x/cpu.cfs_quota_us", "-1\n");
        assert_eq!(cgroup_quota(root, "4:cpu,cpuacct:/docker/x\n"), None);
    }

    #[test]
    fn this_process_has_cores_and_can_pin() {
        let cpus = allowed_cpus();
        assert!((1..=cpus.len()).contains(&default_core_count()));
        let pinned = std::thread::spawn(move || (pin_current_thread(cpus[0]), allowed_cpus() == vec![cpus[0]]));
        assert_eq!(pinned.join().unwrap(), (true, true));
    }
}
