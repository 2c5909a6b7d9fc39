/**
 * The services of a host that belongs to a cluster: those of a host alone, but that keys, templates, lists, quotas, Idempotency-Keys
 * and the audit log are the cluster's, and that streams of events tell of changes on all hosts.
 */
import { noTemplate } from "./capsules/resolved.ts";
import { settingsAfter } from "./capsules/settings.ts";
import { viewOf } from "./capsules/view.ts";
import type { ReleasedFiles } from "./cluster/acquiring.ts";
import type { Cluster } from "./cluster/cluster.ts";
import { Refusal, retired } from "./cluster/failures.ts";
import { addKey, revokeKey } from "./cluster/keys.ts";
import type { AsideFolders } from "./cluster/leaving.ts";
import type { MovingService } from "./cluster/moves.ts";
import { findTemplate, keptAnswer, type RemoteTemplate, retireTemplate, templatesOf } from "./cluster/shared.ts";
import { UnusableHere } from "./cluster/template-files.ts";
import { RefusedHere } from "./http/forwarding.ts";
import type { Services } from "./http/services.ts";
import type { buildService } from "./service.ts";
import { auditOfService } from "./teams/service-audit.ts";
import { type DraftKey, type Requester, revokedKeepMs } from "./teams/teams.ts";
import type { TemplateView } from "./templates/templates.ts";
import { keysMax } from "./wire/credentials.ts";
import { CapsuleError } from "./wire/errors.ts";

export type Service = ReturnType<typeof buildService>;

export interface ClusteredOptions {
  service: Service;
  cluster: Cluster;
  health: Services["health"];
  /** How long keys are accepted that could not be compared with the database's, in milliseconds. */
  keysStaleMs: number;
  /** Undefined: the cluster has no bucket. */
  bucket?: { isUp: boolean } | undefined;
}

/** The files of capsules that leave this host, or come to it. */
export interface MovedParts {
  folders: AsideFolders;
  /** Undefined: the cluster has no bucket. */
  files?: ReleasedFiles | undefined;
}

/** The cluster gets what it needs of the service; call it before the service recovers. */
export async function startCluster(cluster: Cluster, service: Service, { folders, files }: MovedParts): Promise<void> {
  const { store, transitions, decisions, locks, captures, teams, templates, activity, metrics, host } = service;
  teams.trust((keyId) => cluster.newKeys.isVouched(keyId));
  await cluster.start({
    ...{ decisions, locks, captures, folders, files },
    flush: () => service.networkCounters.flush(),
    async forget({ id, storage }) {
      activity.forget(id);
      metrics.forget(id);
      if (storage !== null) await service.retired.collect();
    },
    end: (row) => transitions.destroy(store.beginDestroy(row)),
    stop: (id, reason) => transitions.endVm(id, reason),
    rename: (row, name) => void store.set(row, settingsAfter(row, { name }, Date.now())),
    viewOf: (row) => viewOf(row, activity.lastOf(row.id)),
    onTeamDeleted: (team) => teams.forget(team),
    onRetired: (gone) => templates.retire(gone),
    onKeys: () => void teams.checkRevoked(),
    keepReady: (isKept) => host.keepReady(isKept),
    machine: () => host.machine(),
    moving: movingOf(service),
    room: () => ({
      free_mb: Math.floor(host.memory.spareBytes() / 2 ** 20),
      images: host.images().map(({ name }) => name),
    }),
  });
}

function movingOf({ pauses, capsules, activity, adoptions, audit }: Service): MovingService {
  const { onResumed } = auditOfService(audit);
  return {
    pause: (id, mark) => pauses.toMove(id, mark),
    async resume({ teamId, id }) {
      await capsules.resume(teamId, id);
      onResumed(teamId, id, "drain");
    },
    isBusy: (id) => activity.isBusy(id),
    lastTicks: (id) => activity.lastTicks(id),
    isAdopting: (id) => adoptions.has(id),
  };
}

const bucketAway =
  "the cluster's bucket is away: paused capsules stay on their hosts, and none is brought back from it";

export function clusteredServices({ service, cluster, health, keysStaleMs, bucket }: ClusteredOptions): Services {
  const warnings = () => (bucket?.isUp === false ? [bucketAway] : []);
  return {
    teams: teamsOf(service, cluster, keysStaleMs),
    unheardKeys: cluster.newKeys,
    capsules: capsulesOf(service, cluster),
    templates: templatesService(service, cluster),
    audit: auditOf(service, cluster),
    idempotency: idempotencyOf(service, cluster),
    health: { ...health, ...methodsOf(health), away: () => cluster.reasons(), warnings },
    sharedEvents: cluster.changes,
    released: cluster.released,
  };
}

function methodsOf(health: Services["health"]): Services["health"] {
  return { state: () => health.state(), network: () => health.network(), reasons: () => health.reasons() };
}

function teamsOf({ teams }: Service, cluster: Cluster, keysStaleMs: number): Services["teams"] {
  const { sql } = cluster;
  const requireFresh = () => {
    if (cluster.catalog.staleMs < keysStaleMs) return;
    throw new CapsuleError("unavailable", "keys cannot be checked: the cluster's database is away");
  };
  const add = async ({ row, made }: DraftKey) => {
    await addKey(sql, row, { most: keysMax, revokedKeepMs });
    cluster.step?.("key.decided");
    cluster.catalog.put([{ ...row, revokedAt: null, isSession: row.isSession ? 1 : 0 }]);
    return made;
  };
  return {
    authenticate: (key) => {
      requireFresh();
      return teams.authenticate(key);
    },
    // A signed URL and a ticket end with their key.
    holderOf: (id) => {
      requireFresh();
      return teams.holderOf(id);
    },
    now: () => teams.now(),
    isLive: (id) => teams.isLive(id),
    hasEnded: (id) => teams.hasEnded(id),
    onRevoked: (id, listener) => teams.onRevoked(id, listener),
    key: (id) => teams.key(id),
    keysOf: (teamId) => teams.keysOf(teamId),
    issueKey: async (requester: Requester, name: string) => await add(teams.draftKey(requester, name, null)),
    issueSessionKey: async (requester, name, lifeMs, id) => await add(teams.draftKey(requester, name, lifeMs, id)),
    revokeKeyOf: async (requester, keyId) => {
      teams.requireRevocable(requester, keyId);
      const revoked = await revokeKey(sql, keyId, teams.now());
      if (teams.isLive(keyId)) teams.revokeKey(keyId); // it may have come from the catalog meanwhile
      return revoked;
    },
  };
}

function capsulesOf({ capsules, templateRows, host }: Service, cluster: Cluster): Services["capsules"] {
  const { urlSecrets, metrics, networks } = capsules;
  return {
    ...{ urlSecrets, metrics, networks },
    ...bound(capsules),
    create: async (teamId, request, ...rest) => {
      const { template } = request;
      const create = async (isReplaced: boolean) => {
        const hasImage = host.images().some(({ name }) => name === template);
        using _files = await cluster.templateFiles?.ensure(teamId, template, { hasImage, isReplaced });
        if (templateRows.named(teamId, template) === undefined) cluster.placement.requireFit(request);
        return await capsules.create(teamId, request, ...rest);
      };
      try {
        return await create(false).catch(async (error: unknown) => {
          const place = await placeOfNew(error, cluster, teamId, template);
          if (place === "elsewhere") throw new RefusedHere(error as CapsuleError);
          if (place === undefined) throw error;
          return await create(true);
        });
      } catch (error) {
        throw isOfThisHost(error) ? new RefusedHere(error) : error;
      }
    },
    find: (...of) => cluster.listing.find(...of),
    usage: async (teamId) => ({ ...capsules.usage(teamId), ...(await cluster.listing.usage(teamId)) }),
  };
}

/** The methods that stay those of the host alone. */
const unchanged = [
  ...([
    "get",
    "idNamed",
    "update",
    "wait",
    "permit",
    "admit",
    "use",
    "requireWritable",
    "ping",
    "pause",
    "resume",
  ] as const),
  ...(["stop", "start", "destroy", "portAccess", "onPortsChanged", "onEnd", "onChange"] as const),
] satisfies readonly (keyof Services["capsules"])[];

function bound(capsules: Service["capsules"]): Pick<Services["capsules"], (typeof unchanged)[number]> {
  const methods = unchanged.map((name) => {
    const call = (...of: unknown[]) => (capsules[name] as (...of: unknown[]) => unknown).apply(capsules, of);
    return [name, call];
  });
  return Object.fromEntries(methods) as Pick<Services["capsules"], (typeof unchanged)[number]>;
}

/** A create is refused like this before anything of it is done: the host has no room, or lacks a file that VMs start from. */
function isOfThisHost(error: unknown): error is CapsuleError {
  if (error instanceof UnusableHere) return true;
  return error instanceof CapsuleError && (error.code === "no_capacity" || error.code === "agent_error");
}

/**
 * Where the template is that has replaced the one which a create lacked: in the bucket, or on another host alone. undefined: the create was
 * refused for another reason. Throws "not_found" where it was deleted at another host: this one has not read that yet.
 */
async function placeOfNew(
  error: unknown,
  { sql, host, templateFiles }: Cluster,
  teamId: string,
  template: string,
): Promise<"bucket" | "elsewhere" | undefined> {
  const isRetired = error instanceof Refusal && error.raised === retired;
  // This host may have read that its own one was replaced, and the one that has chosen it may not.
  const isMissing = templateFiles === undefined && error instanceof CapsuleError && error.code === "not_found";
  if (!isRetired && !isMissing) return undefined;
  const found = await findTemplate(sql, teamId, template);
  if (found === undefined && isRetired) throw noTemplate(template);
  if (templateFiles !== undefined) return "bucket";
  return found === undefined || found.host === host ? undefined : "elsewhere";
}

/** The name was taken by a template that another host has deleted, and that this one has not forgotten yet: it does so. */
async function isFreeNow(
  error: unknown,
  { templates, templateRows }: Service,
  { sql }: Cluster,
  { teamId, name = "" }: { teamId: string; name?: string | undefined },
): Promise<boolean> {
  if (!(error instanceof CapsuleError) || error.code !== "template_name_taken") return false;
  const row = templateRows.named(teamId, name);
  if (row === undefined || (await findTemplate(sql, teamId, name)) !== undefined) return false;
  await templates.retire([{ storage: row.storage, teamId, name, isDeleted: true }]);
  return true;
}

function templatesService(service: Service, cluster: Cluster): Services["templates"] {
  const { templates } = service;
  const viewOf = (of: RemoteTemplate): TemplateView => ({ ...of, type: "snapshot" });
  return {
    list: async (teamId, type) => {
      if (type === "base") return templates.list(teamId, "base");
      const snapshots = (await templatesOf(cluster.sql, teamId)).map(viewOf);
      return type === "snapshot" ? snapshots : [...templates.list(teamId, "base"), ...snapshots];
    },
    capture: async (teamId, request, ...rest) => {
      try {
        return await templates.capture(teamId, request, ...rest);
      } catch (error) {
        if (!(await isFreeNow(error, service, cluster, { teamId, name: request.name }))) throw error;
        return await templates.capture(teamId, request, ...rest);
      }
    },
    delete: async (teamId, name) => {
      const found = await findTemplate(cluster.sql, teamId, name);
      if (found === undefined) return await templates.delete(teamId, name);
      await cluster.decided.decide("delete a template", () => retireTemplate(cluster.sql, found.storage, Date.now()));
      await templates.retire([{ storage: found.storage, teamId, name, isDeleted: true }]);
    },
    onChange: (listener) => templates.onChange(listener),
  };
}

function auditOf({ audit }: Service, cluster: Cluster): Services["audit"] {
  return {
    record: (...of) => audit.record(...of),
    recordCommand: (...of) => audit.recordCommand(...of),
    flush: () => audit.flush(),
    list: (...of) => audit.list(...of),
    ofAllHosts: async (teamId, query) => {
      audit.list(teamId, { limit: 1 }); // which writes what is buffered
      const rows = await cluster.audit.list(teamId, { ...query, limit: query.limit + 1 });
      const entries = rows.slice(0, query.limit);
      return { entries, next: rows.length > entries.length ? (entries.at(-1)?.id ?? null) : null };
    },
  };
}

/**
 * Answers that another host has given to a request with the same Idempotency-Key. While it may undo the create, it alone can tell whether
 * its answer holds.
 */
function idempotencyOf({ idempotency }: Service, cluster: Cluster): Services["idempotency"] {
  return {
    begin: async (request, signal) => {
      const begun = await idempotency.begin(request, signal);
      if (begun.first === undefined) return begun;
      try {
        const { bodyHash } = begun.first.keyed({ status: 0, answer: "" });
        const kept = await keptAnswer(cluster.sql, request);
        if (kept === undefined) return begun;
        if (kept.bodyHash === bodyHash && kept.isDoubtful)
          return { ...begun, host: kept.host === cluster.host ? null : kept.host };
        begun.first.end();
        if (kept.bodyHash === bodyHash) return { kept };
      } catch (error) {
        begun.first.end();
        throw error;
      }
      throw new CapsuleError("conflict", "the Idempotency-Key was used with another body; use a new key");
    },
  };
}
