/**
 * The named steps of every transition, for fault tests: a daemon kills or stops itself at the step that CAPSULE_CRASH_AT names.
 * Otherwise they do nothing.
 */
export const steps = [
  // create, resume, start and reboot
  "start.journalled",
  "restore.journalled",
  "restore.loaded",
  "restore.awake",
  "running.committed",
  "release.thawed",
  // a warm process
  "warm.started",
  "warm.ready",
  "warm.claimed",
  // a warm capsule
  "pool.ready",
  "pool.unparked",
  // pause and capture
  "save.frozen",
  "save.stopped",
  "save.written",
  "save.published",
  "paused.committed",
  "capture.written",
  "capture.published",
  "captured.committed",
  // stop
  "stop.halted",
  "stopped.committed",
  // a new network of a capsule
  "network.committed",
  "network.obeyed",
  // the end of a VM, of a capsule, of a template
  "end.killed",
  "destroy.committed",
  "remove.reaped",
  "template.retired",
] as const;

/** On a host of a cluster: PostgreSQL has committed a decision, or the copy of a row, and nothing of that is written here yet. */
export const clusterSteps = [
  "create.decided",
  "destroy.decided",
  "rename.decided",
  "capture.decided",
  "key.decided",
  "status.copied",
] as const;

/** On a host of a cluster with a bucket. */
export const bucketSteps = [
  // a release: a chunk is in the bucket; it is committed here; it is committed in PostgreSQL
  "chunk",
  "releasing",
  "released",
  // a released capsule: it is this host's; its files are here; its row is committed, and its folder not in its place yet
  "acquired",
  "fetched",
  "held",
] as const;

/** In `capsule admin cluster leave`: the cluster has been told what it needs; the host's row is gone; so are the folder's rows of the cluster. */
export const leaveSteps = ["leave.told", "leave.left", "leave.cleared"] as const;

export type StepName = (typeof steps)[number];
export type Step = (name: StepName) => void;
export type ClusterStepName = (typeof clusterSteps)[number];
export type BucketStepName = (typeof bucketSteps)[number];
export type LeaveStepName = (typeof leaveSteps)[number];

/** Kills this process with SIGKILL at the step `at`; with "NAME/stop" it stops itself with SIGSTOP when it first gets there. */
export function stepWithFault(at: string): (name: StepName | ClusterStepName | BucketStepName | LeaveStepName) => void {
  const [name, how] = at.split("/");
  let signal: "SIGKILL" | "SIGSTOP" | undefined = how === "stop" ? "SIGSTOP" : "SIGKILL";
  return (step) => {
    if (step !== name || signal === undefined) return;
    const sent = signal;
    signal = undefined;
    process.kill(process.pid, sent);
  };
}
