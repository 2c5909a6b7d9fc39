/**
 * The named steps of every transition. The daemon of a fault test dies, as by kill -9, when it reaches the one that
 * CAPSULE_CRASH_AT names; otherwise they do nothing.
 */
export const steps = [
  // create and resume
  "start.journalled",
  "restore.journalled",
  "restore.loaded",
  "restore.awake",
  "running.committed",
  "release.thawed",
  // a process started ahead of time
  "warm.started",
  "warm.ready",
  "warm.claimed",
  // a capsule made ahead of time
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
  // the end of a VM, of a capsule, of a template
  "end.killed",
  "destroy.committed",
  "remove.reaped",
  "template.retired",
] as const;

export type StepName = (typeof steps)[number];
export type Step = (name: StepName) => void;

/** Ends this process at the named step, as by kill -9; at none, if no step has that name. */
export function stepThatEnds(name: string): Step {
  return (step) => {
    if (step === name) process.kill(process.pid, "SIGKILL");
  };
}
