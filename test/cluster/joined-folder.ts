/** A cluster without servers, a folder that has joined it, and the program's commands for that folder. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { type ClusterFile, newClusterFile, writeClusterFile } from "../../src/cluster/cluster-file.ts";
import { type Holdings, joinCluster } from "../../src/cluster/joining.ts";
import type { Postgres } from "../../src/cluster/postgres.ts";
import { databasePath, openDatabase } from "../../src/db/database.ts";
import { about, clusterDatabase, clusterId, type Databases } from "./statements.ts";

const program = resolve(import.meta.dirname, "../../capsule");
export const nothing: Holdings = { capsules: 0, teams: [], keys: [], templates: [] };
export const silent = { info() {}, warn() {}, error() {} };

/** A cluster of hosts a, b and c without a server, and a folder that has joined as host two. */
export class World implements AsyncDisposable {
  readonly sql: Postgres;
  readonly file: ClusterFile;
  readonly path: string;
  readonly dataDir: string;

  static async make(server: Databases, work: string): Promise<World> {
    const { url, sql } = await clusterDatabase(server);
    const folder = mkdtempSync(join(work, "world-"));
    const file = { ...newClusterFile(url, Buffer.alloc(32, 6)), cluster: clusterId };
    writeClusterFile(join(folder, "cluster.json"), file);
    const world = new World(sql, file, folder);
    await world.join(world.dataDir, "two");
    openDatabase(databasePath(world.dataDir)).close();
    return world;
  }

  private constructor(sql: Postgres, file: ClusterFile, folder: string) {
    this.sql = sql;
    this.file = file;
    this.path = join(folder, "cluster.json");
    this.dataDir = mkdtempSync(join(folder, "data-"));
  }

  newFolder(): string {
    return mkdtempSync(join(this.path, "..", "data-"));
  }

  async join(dataDir: string, name: string | undefined, holdings = nothing) {
    const { sql, file } = this;
    const { me } = await joinCluster({
      ...{ sql, file, dataDir, name, machineName: "machine", version: "0.0.0", holdings: () => holdings },
      ...{ peer: { address: undefined, port: 8_079 }, log: silent },
    });
    return me;
  }

  capsule(words: string[], more: Record<string, string> = {}, dataDir = this.dataDir) {
    // The port that a start takes by default is tried by other files at the same time.
    const own = { PATH: process.env.PATH ?? "", CAPSULE_DATA: dataDir, CAPSULE_PORT: "0" };
    const env = { ...own, CAPSULE_CLUSTER: this.path, ...more };
    return spawnSync(program, words, { encoding: "utf8", env });
  }

  leave(more: Record<string, string> = {}, dataDir = this.dataDir) {
    return this.capsule(["admin", "cluster", "leave"], more, dataDir);
  }

  async rows<Row extends object>(text: string, values: unknown[] = []): Promise<Row[]> {
    return (await this.sql.query(text, values, about)) as Row[];
  }

  async stateOf(name: string): Promise<string | undefined> {
    return (await this.rows<{ state: string }>("SELECT state FROM hosts WHERE name = $1", [name]))[0]?.state;
  }

  /** Names and contents of the folder's files, but for those of SQLite. */
  files(dataDir = this.dataDir): [string, string][] {
    const entries = readdirSync(dataDir, { withFileTypes: true }).filter((entry) => entry.isFile());
    const names = entries.map(({ name }) => name).filter((name) => !/^(capsule\.db|daemon\.)/.test(name));
    return names.sort().map((name) => [name, readFileSync(join(dataDir, name), "latin1")]);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.sql.close();
  }
}
