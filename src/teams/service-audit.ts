/**
 * Audit entries for changes that no request asked for: changes by the service, capsules that ended by themselves, and throttled
 * writes. Their key id is empty.
 */
import type { AuditAction } from "../wire/audit.ts";
import type { Audit } from "./audit.ts";

/** The fields of a capsule that are read here. */
interface Ended {
  teamId: string;
  id: string;
  errorReason: string | null;
}

const okStatus = 200;
const goneStatus = 204;
const failedStatus = 500;
const noSpaceStatus = 507;

const destroySubjects = { idle: "inactivity", lifetime: "lifetime", retention: "retention" } as const;
const pauseSubjects = { ...destroySubjects, idle: null, memory: "memory pressure", drain: "drain" } as const;
const ends = new Map<string, [AuditAction, number]>([
  ["halt", ["capsule.end", okStatus]],
  ["fail", ["capsule.end", failedStatus]],
  ["reset", ["capsule.reboot", okStatus]],
]);

export function auditOfService(audit: Pick<Audit, "record">) {
  const byService = { keyId: "", keyName: "", address: "" };
  return {
    /** The service has paused a capsule: at a deadline, for lack of memory on the host, or to move it to another one. */
    onPaused(teamId: string, capsuleId: string, cause: keyof typeof pauseSubjects): void {
      const subject = pauseSubjects[cause];
      audit.record({ ...byService, teamId, action: "capsule.pause", capsuleId, subject, status: okStatus });
    },
    /** The service has resumed a capsule with `auto_resume` for a request, or one that was moved. */
    onResumed(teamId: string, capsuleId: string, subject: "auto_resume" | "drain" = "auto_resume"): void {
      audit.record({ ...byService, teamId, action: "capsule.resume", capsuleId, subject, status: okStatus });
    },
    /** The service has destroyed a capsule at a deadline. */
    onDestroyed(teamId: string, capsuleId: string, cause: keyof typeof destroySubjects): void {
      const subject = destroySubjects[cause];
      audit.record({ ...byService, teamId, action: "capsule.destroy", capsuleId, subject, status: goneStatus });
    },
    /** To be called at each commit of the state machine. A guest that powers itself off, is lost or reboots did so by itself. */
    onEnded({ teamId, id, errorReason }: Ended, trigger: string): void {
      const about = ends.get(trigger);
      if (about === undefined) return;
      const [action, status] = about;
      audit.record({ ...byService, teamId, action, capsuleId: id, subject: errorReason, status });
    },
    /** The writes of the team's capsules are throttled, for the reason in `shortage`, or no longer are. */
    onDiskShortage(teamId: string, shortage: string | undefined): void {
      const action = shortage === undefined ? "disk.unthrottle" : "disk.throttle";
      const status = shortage === undefined ? okStatus : noSpaceStatus;
      audit.record({ ...byService, teamId, action, capsuleId: null, subject: shortage ?? null, status });
    },
  };
}
