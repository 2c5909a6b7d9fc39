/** The key that a new service begins with: its one box's own, without a dashboard to make it in. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Teams } from "./teams.ts";

const defaultTeam = "default";

/**
 * On the first start: a team and a key, written to `api-key` in the data folder, for scripts to read, before it counts.
 * Undefined when the team has keys already.
 */
export function ensureFirstKey(dataDir: string, teams: Teams): string | undefined {
  if (teams.keys().some(({ team }) => team === defaultTeam)) return undefined;
  const path = join(dataDir, "api-key");
  const keep = (key: string) => writeFileSync(path, `${key}\n`, { mode: 0o600 });
  return teams.createKey(teams.ensure(defaultTeam).id, "first", keep).key;
}
