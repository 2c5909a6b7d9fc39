/**
 * Audit entries for changes that no request asked for: pauses by the idle timer, and capsules that ended by themselves. Their
 * key id is empty.
 */
import type { Audit } from "./audit.ts";

/** What is read of a capsule. */
interface Ended {
  status: string;
  errorReason: string | null;
}

const okStatus = 200;
const failedStatus = 500;

export function auditOfService(audit: Pick<Audit, "record">) {
  const byService = { keyId: "", keyName: "", address: "" };
  return {
    /** The idle timer has paused a capsule. */
    onExpired(teamId: string, capsuleId: string): void {
      audit.record({ ...byService, teamId, action: "capsule.pause", capsuleId, subject: null, status: okStatus });
    },
    /** To be called at each change of a capsule that its team can see. No request leads to `stopped` or `error`. */
    onEnded(teamId: string, capsuleId: string, view: Ended | undefined): void {
      if (view?.status !== "stopped" && view?.status !== "error") return;
      const status = view.status === "error" ? failedStatus : okStatus;
      const subject = view.errorReason;
      audit.record({ ...byService, teamId, action: "capsule.end", capsuleId, subject, status });
    },
  };
}
