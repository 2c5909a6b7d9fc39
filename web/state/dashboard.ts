/** All that the pages share while somebody is signed in, handed down through the tree. */
import { type ReadonlySignal, signal } from "@preact/signals";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { CapsuleInfo, ServiceEvent, SessionInfo, TemplateInfo } from "../../src/sdk/sdk.ts";
import { Fleet } from "./fleet.ts";
import type { Service } from "./service.ts";
import type { Toasts } from "./toasts.ts";

/** After the SDK has given up reconnecting to the events. */
const patienceMs = 5_000;

export class Dashboard {
  readonly service: Service;
  readonly session: SessionInfo;
  readonly toasts: Toasts;
  readonly fleet = new Fleet();
  readonly #templates = signal<readonly TemplateInfo[] | undefined>(undefined);
  readonly #isLive = signal(false);
  readonly #signOut: () => void;

  constructor(service: Service, session: SessionInfo, toasts: Toasts, signOut: () => void) {
    this.service = service;
    this.session = session;
    this.toasts = toasts;
    this.#signOut = signOut;
  }

  /** Undefined until they have been listed. */
  get templates(): ReadonlySignal<readonly TemplateInfo[] | undefined> {
    return this.#templates;
  }

  /** False while the events do not arrive, and what is shown may be old. */
  get isLive(): ReadonlySignal<boolean> {
    return this.#isLive;
  }

  signOut(): void {
    this.#signOut();
  }

  /** Keeps capsules and templates true until the signal aborts. */
  async follow(signal: AbortSignal): Promise<void> {
    const onState = (state: "live" | "reconnecting") => {
      this.#isLive.value = state === "live";
    };
    while (!signal.aborted) {
      try {
        for await (const event of this.service.events({ signal, onState })) this.heard(event);
      } catch {
        this.#isLive.value = false;
        await new Promise((resolve) => setTimeout(resolve, patienceMs));
      }
    }
  }

  heard(event: ServiceEvent): void {
    switch (event.type) {
      case "reset":
        void this.list();
        return;
      case "capsule":
        this.fleet.changed(event.capsule);
        return;
      case "capsule-removed":
        this.fleet.removed(event.id);
        return;
      case "template":
      case "template-removed":
        void this.listTemplates();
        return;
      default:
        event satisfies never;
    }
  }

  /** Lists everything anew. */
  async list(): Promise<void> {
    await Promise.all([this.listCapsules(), this.listTemplates()]);
  }

  async listCapsules(): Promise<void> {
    const before = this.fleet.knownIds();
    await this.attempt(async () => this.fleet.listed(await this.service.capsules(), before));
  }

  async listTemplates(): Promise<void> {
    await this.attempt(async () => {
      this.#templates.value = await this.service.templates();
    });
  }

  /** Does what a person asked for; an error becomes a toast. True when it was done. */
  async attempt(work: () => Promise<unknown>): Promise<boolean> {
    try {
      await work();
      return true;
    } catch (error) {
      this.toasts.failed(error);
      return false;
    }
  }

  async pause({ id }: CapsuleInfo): Promise<void> {
    await this.fleet.during(id, "pausing", async () => this.fleet.changed(await this.service.pause(id)));
    this.toasts.done(`Capsule ${id} is paused.`);
  }

  async resume({ id }: CapsuleInfo): Promise<void> {
    await this.fleet.during(id, "resuming", async () => this.fleet.changed(await this.service.resume(id)));
    this.toasts.done(`Capsule ${id} is running again.`);
  }

  async destroy({ id }: CapsuleInfo): Promise<void> {
    await this.fleet.during(id, "destroying", () => this.service.destroy(id));
    this.fleet.removed(id);
    this.toasts.done(`Capsule ${id} is destroyed.`);
  }

  /** Resolves with the template's name. */
  async capture({ id }: CapsuleInfo, name: string, overwrite: boolean): Promise<string> {
    const template = await this.fleet.during(id, "capturing", () => this.service.capture(id, name, overwrite));
    this.fleet.removed(id);
    this.toasts.done(`Template ${template.name} is made; capsule ${id} is gone.`);
    void this.listTemplates();
    return template.name;
  }
}

export const DashboardContext = createContext<Dashboard | undefined>(undefined);

export function useDashboard(): Dashboard {
  const dashboard = useContext(DashboardContext);
  if (dashboard === undefined) throw new Error("this part is rendered outside of the dashboard");
  return dashboard;
}
