/** Commands of clients, each to a host of the client's choice, which passes it on to the capsule's holder; and what they are told. */
import type { CreateRequest } from "../../../src/capsules/new-row.ts";
import { CapsuleError } from "../../../src/wire/errors.ts";
import { keys } from "../../api.ts";
import type { Daemon } from "./host.ts";
import type { Life } from "./life.ts";
import { KnownCapsule, team } from "./model.ts";
import { Lost, type Request, routed } from "./routes.ts";
import type { World } from "./world.ts";

/** Codes that a client may meet; anything else is a mistake. */
const expected = new Set([
  ...["not_found", "invalid_state", "agent_error", "conflict", "template_name_taken", "no_space", "quota_exceeded"],
  ...["name_taken", "unavailable", "unauthorized", "forbidden", "no_capacity"],
]);

type Verb = "pause" | "resume" | "stop" | "start";

interface Ends<T> {
  told: (value: T) => void;
  /** Nothing was done, and the client knows. */
  refused?: (code: string) => void;
  /** It was done or not, or is done later. */
  unknown?: () => void;
}

interface UnderWay {
  life: Life;
  end: () => void;
}

/** Which commands clients send. */
export type Mix = "ends" | "runs" | "both" | "credentials" | "captures" | "all" | "moves" | "drains";

const names = ["web", "api", null];
const restMs = 30;
const statusAfter: Record<Verb, string> = { pause: "paused", resume: "running", stop: "stopped", start: "running" };

export class Commands {
  readonly #world: World;
  readonly #underWay = new Set<UnderWay>();
  /** Some schedules are about some commands. */
  readonly #mix: ((daemon: Daemon) => void)[];
  #keyed = 0;

  constructor(world: World) {
    this.#world = world;
    const [ends, runs] = [
      [this.create, this.create, this.destroy],
      [this.create, this.pause, this.pause, this.resume, this.resume],
    ];
    const credentials = [this.makeKey, this.makeKey, this.revokeKey, this.revokeKey];
    const rest = [this.stop, this.start, this.rename, this.rename, this.capture, this.deleteTemplate];
    const all = [...ends, ...ends, ...runs, ...runs, ...rest, ...credentials, this.list, this.look, this.strange];
    const captures = [this.create, this.create, this.capture, this.deleteTemplate];
    const moves = [
      this.create,
      this.destroy,
      this.rename,
      this.look,
      this.pause,
      this.resume,
      ...Array<typeof this.goOn>(20).fill(this.goOn),
    ];
    const drains = [
      this.create,
      this.destroy,
      this.rename,
      this.look,
      this.pause,
      ...Array<typeof this.stayOn>(12).fill(this.stayOn),
    ];
    const mixes = { drains, ends, runs, both: [...ends, ...runs], credentials, captures, all, moves };
    const any: Mix[] = ["ends", "runs", "both", "credentials", "captures", "all", "all", "all"];
    const anyMoved: Mix[] = ["moves", "moves", "moves", "moves", "moves", "all"];
    const picked = world.mutant?.mix ?? world.scheduler.pick(world.bucket.isThere ? anyMoved : any);
    this.#mix = mixes[world.drains.isPlayed && picked === "moves" ? "drains" : picked];
  }

  get underWay(): number {
    return this.#underWay.size;
  }

  /** Commands to a daemon that has died have no answer. */
  onDeath(life: Life): void {
    for (const each of [...this.#underWay]) if (each.life === life) each.end();
  }

  issue(daemon: Daemon): void {
    const { scheduler } = this.#world;
    scheduler.pick(this.#mix).call(this, daemon);
  }

  create(daemon: Daemon): void {
    const { scheduler, model, checks, putBack } = this.#world;
    const key = scheduler.chance(0.4) ? `key ${scheduler.chance(0.5) ? this.#keyed : ++this.#keyed}` : undefined;
    const template = scheduler.chance(0.2) ? "tools" : "minimal";
    const name = key === undefined ? scheduler.pick(names) : null;
    const request = { template: key === undefined ? template : "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };
    const named = name === null ? {} : { name };
    const isSteady = putBack.watch();
    this.#ask(daemon, `create ${name} ${key}`, () => this.#made(daemon, { ...request, ...named }, key), {
      told: (id) => {
        const known = key === undefined ? undefined : model.answers.get(key);
        if (known !== undefined && known !== id && isSteady())
          this.#world.violated(`I8: ${key} has made ${known} and ${id}`);
        if (key !== undefined) model.answers.set(key, id);
        if (model.capsules.has(id)) return;
        const capsule = new KnownCapsule(id, name);
        model.capsules.set(id, capsule);
        checks.holds(`${id} was made, and is not in the database`, (now) => {
          capsule.holder = now.capsules.get(id)?.host ?? "";
          return capsule.holder !== "";
        });
      },
    });
  }

  destroy(daemon: Daemon): void {
    const capsule = this.#any();
    if (capsule !== undefined)
      this.#end(daemon, capsule, {
        ...{ id: capsule.id, action: "destroy", work: (holder) => holder.services.capsules.destroy(team, capsule.id) },
        ofRow: (entry, released) => entry.cluster.released.destroy(released),
      });
  }

  capture(daemon: Daemon): void {
    const capsule = this.#any();
    if (capsule === undefined) return;
    const request = { capsuleId: capsule.id, name: this.#world.scheduler.pick(["tools", "other"]), overwrite: true };
    const work = async (holder: Daemon) => void (await holder.services.templates.capture(team, request));
    this.#end(daemon, capsule, { id: capsule.id, action: "snapshot", work });
  }

  /** A command that ends the capsule. */
  #end(daemon: Daemon, capsule: KnownCapsule, request: Request<void>): void {
    capsule.endings += 1;
    const what = `${request.action} ${capsule.id}`;
    const isSteady = this.#world.putBack.watch();
    this.#ask(daemon, what, () => routed(this.#world, daemon, request), {
      told: () => {
        capsule.isEnded = true;
        this.#world.checks.holds(`${what} was answered`, (now) => now.tombstones.has(capsule.id));
      },
      refused: (code) => {
        capsule.endings -= 1;
        if (code === "not_found" && capsule.isSure && isSteady())
          this.#world.violated(`I8: ${capsule.id} is not found`);
      },
    });
  }

  pause(daemon: Daemon): void {
    this.change(daemon, this.#any(), "pause");
  }

  resume(daemon: Daemon): void {
    this.change(daemon, this.#any(), "resume");
  }

  stop(daemon: Daemon): void {
    this.change(daemon, this.#any(), "stop");
  }

  start(daemon: Daemon): void {
    this.change(daemon, this.#any(), "start");
  }

  change(daemon: Daemon, capsule: KnownCapsule | undefined, verb: Verb): void {
    if (capsule === undefined) return;
    const isAlone = capsule.changes === 0;
    capsule.changes += 1;
    const begun = ++capsule.begun;
    capsule.status = undefined;
    const { id } = capsule;
    const isSteady = this.#world.putBack.watch();
    const request: Request<unknown> = { id, action: verb, work: ({ services }) => services.capsules[verb](team, id) };
    this.#ask(daemon, `${verb} ${id}`, () => routed(this.#world, daemon, request), {
      told: () => {
        capsule.changes -= 1;
        if (isAlone && capsule.changes === 0 && capsule.begun === begun) capsule.status = statusAfter[verb];
      },
      refused: (code) => {
        capsule.changes -= 1;
        if (code === "not_found" && capsule.isSure && isSteady())
          this.#world.violated(`I8: ${capsule.id} is not found`);
      },
    });
  }

  /** Writes, pauses and resumes in an order that most of them succeed in. */
  goOn(daemon: Daemon): void {
    const { scheduler } = this.#world;
    const capsule = this.#any();
    if (capsule === undefined) this.create(daemon);
    else if (capsule.status === "paused" && scheduler.chance(0.8)) this.#rest();
    else if (capsule.status === "paused") this.change(daemon, capsule, "resume");
    else if (scheduler.chance(0.4)) this.write(daemon, capsule);
    else this.change(daemon, capsule, capsule.status === undefined && scheduler.chance(0.5) ? "resume" : "pause");
  }

  /** Capsules run, so that hosts which are drained move them. */
  stayOn(daemon: Daemon): void {
    const capsule = this.#any();
    if (capsule === undefined) this.create(daemon);
    else if (capsule.status === "running" || this.#world.scheduler.chance(0.5)) this.write(daemon, capsule);
    else this.change(daemon, capsule, "resume");
  }

  /** Paused capsules are left alone, so that they are released. */
  #rest(): void {
    this.#world.scheduler.note("paused capsules rest");
    for (const { life } of this.#world.hosts) life?.advance(restMs);
  }

  /** A command that writes; each has a number. */
  write(daemon: Daemon, capsule: KnownCapsule | undefined): void {
    if (capsule === undefined) return;
    const { id } = capsule;
    const number = ++capsule.lastWrite;
    const write = async (holder: Daemon) => {
      await this.#world.scheduler.turn(`write ${number} in ${id}`);
      this.#world.hosts.find(({ name }) => name === holder.life.host)!.machine.write(id, number);
    };
    const work = (holder: Daemon) => holder.services.capsules.use(team, id, "exec", () => write(holder));
    this.#ask(daemon, `write ${number} in ${id}`, () => routed(this.#world, daemon, { id, action: "exec", work }), {
      told: () => void capsule.written.push(number),
    });
  }

  rename(daemon: Daemon): void {
    const { scheduler, checks } = this.#world;
    const capsule = this.#any();
    if (capsule === undefined) return;
    const name = scheduler.pick(names);
    const ask = capsule.askName(name, scheduler.trace.length);
    const work = async (holder: Daemon) => void (await holder.services.capsules.update(team, capsule.id, { name }));
    const request: Request<void> = { id: capsule.id, action: "update", work };
    this.#ask(daemon, `rename ${capsule.id} ${name}`, () => routed(this.#world, daemon, request), {
      told: () => {
        capsule.named(ask);
        checks.holds(`${capsule.id} was renamed`, (now) => {
          const row = now.capsules.get(capsule.id);
          return row === undefined ? !capsule.isSure : capsule.names.includes(row.name);
        });
      },
      refused: () => capsule.unnamed(ask, undefined),
      unknown: () => capsule.unnamed(ask, scheduler.trace.length),
    });
  }

  deleteTemplate(daemon: Daemon): void {
    const name = this.#world.scheduler.pick(["tools", "other"]);
    this.#ask(daemon, `delete template ${name}`, () => daemon.services.templates.delete(team, name), {
      told: () => {},
    });
  }

  /** A list has what was there all the time, and nothing that was gone before. */
  list(daemon: Daemon): void {
    const { model, putBack } = this.#world;
    const isSteady = putBack.watch();
    const before = model.sure();
    const gone = [...model.capsules.values()].filter(({ isEnded }) => isEnded);
    const read = async () => {
      const ids = new Set<string>();
      for await (const { items } of daemon.cluster.listing.find(team, {}, { limit: 100 }))
        for (const { id } of items) ids.add(id);
      return ids;
    };
    this.#ask(daemon, "list", read, {
      told: (ids) => {
        if (!isSteady()) return;
        for (const { id, isSure } of before) if (isSure && !ids.has(id)) this.#world.violated(`${id} is not listed`);
        for (const { id } of gone) if (ids.has(id)) this.#world.violated(`I9: ${id} was destroyed, and is listed`);
      },
    });
  }

  look(daemon: Daemon): void {
    const capsule = this.#any();
    if (capsule === undefined) return;
    const { id, isEnded } = capsule;
    const isSteady = this.#world.putBack.watch();
    const work = async (holder: Daemon) => void holder.services.capsules.get(team, id);
    const request: Request<void> = { id, action: "read", work, ofRow: async () => {} };
    this.#ask(daemon, `get ${id}`, () => routed(this.#world, daemon, request), {
      told: () => {
        if (isEnded && isSteady()) this.#world.violated(`I9: ${id} was destroyed, and is found`);
      },
      refused: (code) => {
        if (code === "not_found" && capsule.isSure && isSteady()) this.#world.violated(`I8: ${id} is not found`);
      },
    });
  }

  /** The id of another team is one that nobody has. */
  strange(daemon: Daemon): void {
    const capsule = this.#any();
    if (capsule === undefined) return;
    const { locations } = daemon.cluster;
    const read = async () => {
      const found = await locations.find("team-blue", capsule.id);
      const unknown = await locations.find("team-blue", `cl-${"0".repeat(25)}`);
      return [found, unknown].map((each) => JSON.stringify(each)).filter((each) => !each.includes("unavailable"));
    };
    this.#ask(daemon, `get a foreign ${capsule.id}`, read, {
      told: (found) => {
        if (found.some((each) => each !== found[0])) this.#world.violated(`I15: ${found.join(" and ")}`);
      },
    });
  }

  makeKey(daemon: Daemon): void {
    const { scheduler, model, checks, putBack } = this.#world;
    const of = scheduler.pick(["red", "blue"]);
    const isSteady = putBack.watch();
    const work = () => daemon.services.teams.issueKey({ teamId: `team-${of}`, keyId: `key-${of}` }, "made");
    this.#ask(daemon, `make a key of ${of}`, async () => await work(), {
      told: ({ id, key }) => {
        model.keys.set(id, { id, of, text: key, state: isSteady() ? "live" : "ending" });
        checks.holds(`${id} was made, and is not in the database`, (now) => now.keys.some((each) => each.id === id));
      },
    });
  }

  revokeKey(daemon: Daemon): void {
    const { scheduler, model, checks, putBack } = this.#world;
    const isSteady = putBack.watch();
    const key = scheduler.pick([...model.keys.values()]);
    if (key === undefined) return;
    if (key.state === "live") key.state = "ending";
    const requester = { teamId: `team-${key.of}`, keyId: `key-${key.of}` };
    this.#ask(daemon, `revoke ${key.id}`, async () => await daemon.services.teams.revokeKeyOf(requester, key.id), {
      told: () => {
        if (!isSteady()) return;
        key.state = "ended";
        key.endedAt = daemon.life.host;
        checks.holds(`${key.id} was revoked`, (now) =>
          now.keys.some(({ id, revoked_at }) => id === key.id && revoked_at !== null),
        );
      },
    });
  }

  #any(): KnownCapsule | undefined {
    return this.#world.scheduler.pick([...this.#world.model.capsules.values()].slice(-6));
  }

  #ask<T>(daemon: Daemon, what: string, work: () => Promise<T>, { told, refused, unknown }: Ends<T>): void {
    const { scheduler } = this.#world;
    const { life, services } = daemon;
    const note = (end: string) => scheduler.note(`client at ${life.name}: ${what}: ${end}`);
    note("asked");
    const end = () => {
      this.#underWay.delete(underWay);
      unknown?.();
    };
    const underWay: UnderWay = { life, end };
    this.#underWay.add(underWay);
    const settle = (outcome: () => void) => {
      if (!this.#underWay.delete(underWay)) return;
      outcome();
    };
    const authenticated = async () => {
      if (services.teams.authenticate(keys.red) === undefined) throw new CapsuleError("unauthorized", "not yet known");
      return await work();
    };
    const failed = (error: unknown) => {
      if (error instanceof Lost || (error instanceof CapsuleError && error.code === "unavailable")) {
        note(String(error));
        unknown?.();
      } else if (error instanceof CapsuleError && expected.has(error.code)) {
        note(error.message);
        refused?.(error.code);
      } else this.#world.broken(error);
    };
    life
      .run(authenticated)
      .then(
        (value) =>
          settle(() => {
            note("told");
            told(value);
          }),
        (error: unknown) => settle(() => failed(error)),
      )
      .catch((error: unknown) => this.#world.broken(error));
  }

  /** As the route of creates does it; on the host that may have answered the request, where that alone can tell. */
  async #made(daemon: Daemon, request: CreateRequest, key: string | undefined): Promise<string> {
    const { capsules, idempotency } = daemon.services;
    if (key === undefined) return (await capsules.create(team, request)).id;
    const asked = { teamId: team, route: "/v1/capsules", key, bodyHash: "the same" };
    const { first, kept, host } = await idempotency.begin(asked, new AbortController().signal);
    if (kept !== undefined) return kept.answer;
    try {
      if (typeof host === "string")
        return await this.#world.askPeer(daemon, host, (at) => this.#made(at, request, key));
      const answerOf = ({ id }: { id: string }) => ({ status: 201, answer: id });
      const made = await capsules.create(
        team,
        request,
        (capsule) => first.keep(answerOf(capsule)),
        (capsule) => first.keyed(answerOf(capsule)),
      );
      return made.id;
    } finally {
      first.end();
    }
  }
}
