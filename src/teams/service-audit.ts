/**
 * Audit entries for changes that no request asked for: pauses by the service, capsules that ended by themselves, and throttled
 * writes. Their key id is empty.
 */
import type { Audit } from "./audit.ts";

/** The fields of a capsule that are read here. */
interface Ended {
  status: string;
  errorReason: string | null;
}

const okStatus = 200;
const failedStatus = 500;
const noSpaceStatus = 507;

export function auditOfService(audit: Pick<Audit, "record">) {
  const byService = { keyId: "", keyName: "", address: "" };
  return {
    /** The service has paused a capsule: the idle timer, or for lack of memory on the host. */
    onPaused(teamId: string, capsuleId: string, cause: "idle" | "memory"): void {
      const subject = cause === "idle" ? null : "memory pressure";
      audit.record({ ...byService, teamId, action: "capsule.pause", capsuleId, subject, status: okStatus });
    },
    /** To be called at each change of a capsule that its team can see. No request leads to `stopped` or `error`. */
    onEnded(teamId: string, capsuleId: string, view: Ended | undefined): void {
      if (view?.status !== "stopped" && view?.status !== "error") return;
      const status = view.status === "error" ? failedStatus : okStatus;
      const subject = view.errorReason;
      audit.record({ ...byService, teamId, action: "capsule.end", capsuleId, subject, status });
    },
    /** The writes of the team's capsules are throttled, for the reason in `shortage`, or no longer are. */
    onDiskShortage(teamId: string, shortage: string | undefined): void {
      const action = shortage === undefined ? "disk.unthrottle" : "disk.throttle";
      const status = shortage === undefined ? okStatus : noSpaceStatus;
      audit.record({ ...byService, teamId, action, capsuleId: null, subject: shortage ?? null, status });
    },
  };
}
