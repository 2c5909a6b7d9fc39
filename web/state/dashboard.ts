/** The state of a signed-in session, shared by all pages through a context. */
import { type ReadonlySignal, signal } from "@preact/signals";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { CapsuleInfo, Client, ServiceEvent, SessionInfo, TemplateInfo } from "../../src/sdk/sdk.ts";
import { CapsuleStore } from "./capsule-store.ts";
import type { Toasts } from "./toasts.ts";

/** Pause before the events are opened again, after the SDK has given up. */
const retryMs = 5_000;

export class Dashboard {
  readonly client: Client;
  readonly session: SessionInfo;
  readonly toasts: Toasts;
  readonly store = new CapsuleStore();
  readonly #templates = signal<readonly TemplateInfo[] | undefined>(undefined);
  readonly #isLive = signal(false);
  readonly #signOut: () => void;

  constructor(client: Client, session: SessionInfo, toasts: Toasts, signOut: () => void) {
    this.client = client;
    this.session = session;
    this.toasts = toasts;
    this.#signOut = signOut;
  }

  /** Undefined until they are listed. */
  get templates(): ReadonlySignal<readonly TemplateInfo[] | undefined> {
    return this.#templates;
  }

  /** False while the event stream is broken: the pages may show old state. */
  get isLive(): ReadonlySignal<boolean> {
    return this.#isLive;
  }

  signOut(): void {
    this.#signOut();
  }

  /** Applies the events to capsules and templates until the signal aborts. */
  async follow(signal: AbortSignal): Promise<void> {
    const onState = (state: "live" | "reconnecting") => {
      this.#isLive.value = state === "live";
    };
    while (!signal.aborted) {
      try {
        for await (const event of this.client.events({ signal, onState })) this.apply(event);
      } catch {
        this.#isLive.value = false;
        await new Promise((resolve) => setTimeout(resolve, retryMs));
      }
    }
  }

  apply(event: ServiceEvent): void {
    switch (event.type) {
      case "reset":
        void this.list();
        return;
      case "capsule":
        this.store.changed(event.capsule);
        return;
      case "capsule-removed":
        this.store.removed(event.id);
        return;
      case "template":
      case "template-removed":
        void this.listTemplates();
        return;
      default:
        event satisfies never;
    }
  }

  /** Reads capsules and templates again. */
  async list(): Promise<void> {
    await Promise.all([this.listCapsules(), this.listTemplates()]);
  }

  async listCapsules(): Promise<void> {
    const before = this.store.knownIds();
    await this.attempt(async () =>
      this.store.listed(
        (await this.client.list()).map(({ info }) => info),
        before,
      ),
    );
  }

  async listTemplates(): Promise<void> {
    await this.attempt(async () => {
      this.#templates.value = await this.client.templates.list();
    });
  }

  /** Runs an action of the user; an error becomes a toast. True: it succeeded. */
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
    const pause = async () => this.store.changed((await this.client.capsule(id).pause()).info);
    await this.store.during(id, "pausing", pause);
    this.toasts.done(`Capsule ${id} is paused.`);
  }

  async resume({ id }: CapsuleInfo): Promise<void> {
    const resume = async () => this.store.changed((await this.client.capsule(id).resume()).info);
    await this.store.during(id, "resuming", resume);
    this.toasts.done(`Capsule ${id} is running again.`);
  }

  async stop({ id }: CapsuleInfo): Promise<void> {
    const stop = async () => this.store.changed((await this.client.capsule(id).stop()).info);
    await this.store.during(id, "stopping", stop);
    this.toasts.done(`Capsule ${id} is stopped.`);
  }

  async start({ id }: CapsuleInfo): Promise<void> {
    const start = async () => this.store.changed((await this.client.capsule(id).start()).info);
    await this.store.during(id, "starting", start);
    this.toasts.done(`Capsule ${id} is running again.`);
  }

  async destroy({ id }: CapsuleInfo): Promise<void> {
    await this.store.during(id, "destroying", () => this.client.capsule(id).destroy());
    this.store.removed(id);
    this.toasts.done(`Capsule ${id} is destroyed.`);
  }

  /** An empty name: the service generates one. Resolves with the template's name. */
  async capture({ id }: CapsuleInfo, name: string, overwrite: boolean): Promise<string> {
    const capture = () => this.client.capsule(id).snapshot(name === "" ? undefined : name, { overwrite });
    const template = await this.store.during(id, "capturing", capture);
    this.store.removed(id);
    this.toasts.done(`Template ${template.name} is made; capsule ${id} was destroyed.`);
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
