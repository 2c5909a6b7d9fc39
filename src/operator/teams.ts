/** `capsule admin teams` and `capsule admin audit`: the teams of a data folder, and what each has done. */
import { type Call, UsageError } from "../cli/command.ts";
import { Failure } from "../cli/failures.ts";
import type { CountedTeam } from "../cluster/keys.ts";
import type { AuditRow } from "../db/audit-rows.ts";
import type { TeamRow } from "../db/team-rows.ts";
import type { Teams } from "../teams/teams.ts";
import { printRows } from "./listing.ts";
import type { SharedTeams } from "./shared-teams.ts";
import { byOperator, withTeams } from "./team-records.ts";

export function createTeam({ words: [name = ""] }: Pick<Call, "words">): Promise<number> {
  return withTeams(async (teams, _log, _capsules, shared) => {
    if (teams.named(name) !== undefined) throw new Failure(`there is a team ${name} already`);
    await (shared ?? teams).ensure(name);
  });
}

/** Name, time of its creation, live keys, capsules and templates. */
export function listTeams(): Promise<number> {
  return withTeams(async (teams, _log, _capsules, shared) => {
    const lines = (await listed(teams, shared)).map(({ name, createdAt, keys, capsules, templates }) => {
      const counts = [`${keys} keys`, `${capsules} capsules`, `${templates} templates`];
      return [name, new Date(createdAt).toISOString(), ...counts];
    });
    await printRows(["TEAM", "CREATED", "KEYS", "CAPSULES", "TEMPLATES"], lines);
  });
}

async function listed(teams: Teams, shared: SharedTeams | undefined): Promise<CountedTeam[]> {
  if (shared !== undefined) return await shared.list();
  return teams.list().map((team) => ({ ...team, keys: teams.keysOf(team.id).length }));
}

/** Capsules of this host. Newest last: team, id, name, status, vCPUs, memory, time of its last activity or of its creation, reason. */
export function listCapsules(call: Pick<Call, "text">): Promise<number> {
  return withTeams(async (teams, _log, capsules) => {
    const team = call.text("team");
    const names = new Map(teams.list().map(({ id, name }) => [id, name]));
    const rows = team === undefined ? capsules.all() : capsules.ofTeam(requireTeam(teams.named(team), team).id);
    const lines = rows.map(({ teamId, id, name, status, vcpus, memoryMb, lastActiveAt, createdAt, errorReason }) => [
      ...[names.get(teamId) ?? teamId, id, name ?? "-", status, `${vcpus} vCPUs`, `${memoryMb} MiB`],
      ...[new Date(lastActiveAt ?? createdAt).toISOString(), errorReason ?? "-"],
    ]);
    await printRows(["TEAM", "ID", "NAME", "STATUS", "VCPUS", "MEMORY", "LAST ACTIVE", "REASON"], lines);
  });
}

/** Its keys end with it; its audit log stays as long as others. */
export function deleteTeam({ words: [name = ""] }: Pick<Call, "words">): Promise<number> {
  return withTeams(async (teams, log, _capsules, shared) => {
    const team = requireTeam(teams.named(name), name);
    const keys = teams.keysOf(team.id);
    await (shared ?? teams).delete(team);
    const entry = { ...byOperator(team.id), action: "key.revoke" as const, status: 204 };
    log.append(keys.map(({ id: subject }) => ({ ...entry, subject })));
  });
}

const pageMax = 1_000;

/** Entries of all hosts. Newest first: time, action, HTTP status, key, capsule, subject and exit code. */
export function printAudit(call: Pick<Call, "text" | "number">): Promise<number> {
  const [name, limit = 100] = [call.text("team"), call.number("limit")];
  if (name === undefined) throw new UsageError("--team NAME is missing");
  return withTeams(async (teams, log, _capsules, shared) => {
    const team = requireTeam(
      (await listed(teams, shared)).find((each) => each.name === name),
      name,
    );
    let before: number | undefined;
    for (let left = limit; left > 0; ) {
      const query = { limit: Math.min(left, pageMax), before };
      const rows = await (shared?.audit(team.id, query) ?? log.list(team.id, query));
      if (rows.length === 0) return;
      await printRows(["TIME", "ACTION", "HTTP", "KEY", "CAPSULE", "SUBJECT", "EXIT CODE"], rows.map(auditFields));
      left -= rows.length;
      before = rows.at(-1)?.id;
    }
  });
}

function auditFields({ at, action, status, keyId, keyName, capsuleId, subject, exitCode }: AuditRow): string[] {
  const who = keyId === "" ? "the service" : `${keyId} ${keyName}`.trim();
  const rest = [capsuleId ?? "-", subject ?? "-", exitCode === null ? "-" : String(exitCode)];
  return [new Date(at).toISOString(), action, String(status), who, ...rest];
}

function requireTeam(team: TeamRow | undefined, name: string): TeamRow {
  if (team !== undefined) return team;
  throw new Failure(`there is no team ${JSON.stringify(name)}`, "capsule admin teams list lists them.");
}
