/** Random changes through the API, one at a time, and a record of what the server has acknowledged. */
import type { Client } from "../client.ts";
import type { Random } from "../conformance/random.ts";
import { type Acknowledged, nothingAcknowledged, type Pending, writeText } from "./acknowledged.ts";

const capsulesMax = 3;
const templatesMax = 2;
const keysMax = 3;
/** How many of the last changes must have an entry in the audit log. */
const auditedMax = 50;

/** Action of the entry in the audit log. Entries of commands are written once a second, so a power cut may lose them. */
const actions: Partial<Record<Pending["verb"], string>> = {
  create: "capsule.create",
  pause: "capsule.pause",
  resume: "capsule.resume",
  capture: "template.create",
  delete: "capsule.destroy",
  "delete template": "template.delete",
  "make key": "key.create",
  "revoke key": "key.revoke",
};

/** A change that is possible now. */
interface Step extends Pending {
  /** Resolves with the id of the new capsule or key. */
  // biome-ignore lint/suspicious/noConfusingVoidType: most steps make nothing
  act(): Promise<string | void>;
}

export class RandomChanges {
  readonly #client: Client;
  readonly #random: Random;
  readonly #known = nothingAcknowledged();
  readonly #templateOf = new Map<string, string>();
  #pending: Pending | undefined;
  #serial = 0;

  constructor(client: Client, random: Random) {
    this.#client = client;
    this.#random = random;
  }

  /** A copy of the record. */
  get known(): Acknowledged {
    return structuredClone(this.#known);
  }

  get pending(): Pending | undefined {
    return this.#pending;
  }

  /** The next change; resolves when it is acknowledged. */
  async step(verb?: Pending["verb"]): Promise<void> {
    const steps = this.#steps().filter((step) => verb === undefined || step.verb === verb);
    // The verb first: all verbs are equally likely, however many subjects each has.
    const verbs = [...new Set(steps.map((step) => step.verb))];
    const chosen = verbs[this.#random.below(verbs.length)];
    const subjects = steps.filter((step) => step.verb === chosen);
    const { act, ...pending } = subjects[this.#random.below(subjects.length)]!;
    this.#pending = pending;
    const made = await act();
    this.#pending = undefined;
    this.#note(pending, made ?? pending.subjects[0]!);
  }

  #note({ verb }: Pending, subject: string): void {
    const action = actions[verb];
    if (action === undefined) return;
    this.#known.audited.push(`${action} ${subject}`);
    if (this.#known.audited.length > auditedMax) this.#known.audited.shift();
  }

  #steps(): Step[] {
    const { capsules, templates, keys } = this.#known;
    const steps: Step[] = [];
    const live = [...keys].filter(([, { isValid }]) => isValid).map(([id]) => id);
    if (capsules.size < capsulesMax) steps.push(this.#create(undefined));
    if (capsules.size < capsulesMax) for (const name of templates.keys()) steps.push(this.#create(name));
    for (const [id, { status, text }] of capsules) {
      if (status === "paused") steps.push(this.#resume(id));
      else steps.push(this.#write(id), ...(text === null ? [] : [this.#pause(id)]));
      if (status === "running" && text !== null && templates.size < templatesMax) steps.push(this.#capture(id, text));
      if (capsules.size > 1) steps.push(this.#delete(id));
    }
    // A paused capsule cannot be resumed once its template is deleted.
    const needed = [...capsules].map(([id, { status }]) =>
      status === "paused" ? this.#templateOf.get(id) : undefined,
    );
    for (const name of templates.keys()) if (!needed.includes(name)) steps.push(this.#deleteTemplate(name));
    if (live.length < keysMax) steps.push(this.#makeKey());
    for (const id of live) steps.push(this.#revokeKey(id));
    return steps;
  }

  #create(template: string | undefined): Step {
    return {
      verb: "create",
      subjects: [],
      act: async () => {
        const { id } = await this.#client.capsule(template === undefined ? {} : { template });
        this.#known.capsules.set(id, { status: "running", text: null });
        if (template !== undefined) this.#templateOf.set(id, template);
        return id;
      },
    };
  }

  #write(id: string): Step {
    return {
      verb: "write",
      subjects: [id],
      act: async () => {
        const text = `text-${this.#serial++}`;
        await writeText(this.#client.known(id), text);
        this.#known.capsules.set(id, { status: "running", text });
      },
    };
  }

  #pause(id: string): Step {
    return {
      verb: "pause",
      subjects: [id],
      act: async () => {
        await this.#client.known(id).pause();
        this.#known.capsules.get(id)!.status = "paused";
      },
    };
  }

  #resume(id: string): Step {
    return {
      verb: "resume",
      subjects: [id],
      act: async () => {
        await this.#client.known(id).resume();
        this.#known.capsules.get(id)!.status = "running";
      },
    };
  }

  #capture(id: string, text: string): Step {
    const name = `template-${this.#serial++}`;
    return {
      verb: "capture",
      subjects: [id, name],
      act: async () => {
        await this.#client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: id, name } });
        this.#known.templates.set(name, text);
        this.#gone(id);
      },
    };
  }

  #delete(id: string): Step {
    return {
      verb: "delete",
      subjects: [id],
      act: async () => {
        await this.#client.known(id).destroy();
        this.#gone(id);
      },
    };
  }

  #deleteTemplate(name: string): Step {
    return {
      verb: "delete template",
      subjects: [name],
      act: async () => {
        await this.#client.expect(204, "DELETE", `/v1/snapshots/${name}`);
        this.#known.templates.delete(name);
      },
    };
  }

  #makeKey(): Step {
    return {
      verb: "make key",
      subjects: [],
      act: async () => {
        const name = `key-${this.#serial++}`;
        const { json } = await this.#client.expect(201, "POST", "/v1/keys", { json: { name } });
        this.#known.keys.set(json.id, { key: json.key, isValid: true });
        return json.id;
      },
    };
  }

  #revokeKey(id: string): Step {
    return {
      verb: "revoke key",
      subjects: [id],
      act: async () => {
        await this.#client.expect(204, "DELETE", `/v1/keys/${id}`);
        this.#known.keys.get(id)!.isValid = false;
      },
    };
  }

  #gone(id: string): void {
    this.#known.capsules.delete(id);
    this.#known.deleted.add(id);
  }
}
