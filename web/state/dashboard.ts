/** The state of a signed-in session, shared by all pages through a context. */
import { type ReadonlySignal, signal } from "@preact/signals";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { CapsuleInfo, Client, ServiceEvent, SessionInfo, TemplateInfo } from "../../src/sdk/sdk.ts";
import { CapsuleStore, type Operation } from "./capsule-store.ts";
import { RecentMetrics } from "./recent-metrics.ts";
import type { Toasts } from "./toasts.ts";
import { UploadQueue } from "./upload-queue.ts";

/** Pause before the events are opened again, after the SDK has given up. */
const retryMs = 5_000;

export type Change = "pause" | "resume" | "stop" | "start" | "destroy";

/** `done`: what a capsule is afterwards. */
export const changes: Record<Change, { operation: Operation; done: string }> = {
  pause: { operation: "pausing", done: "paused" },
  resume: { operation: "resuming", done: "running again" },
  stop: { operation: "stopping", done: "stopped" },
  start: { operation: "starting", done: "running again" },
  destroy: { operation: "destroying", done: "destroyed" },
};

export class Dashboard {
  readonly client: Client;
  readonly session: SessionInfo;
  readonly toasts: Toasts;
  readonly store = new CapsuleStore();
  readonly recent = new RecentMetrics((id, since) => this.client.capsule(id).metrics({ since, step: 10 }));
  readonly #uploads = new Map<string, UploadQueue>();
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

  /** The uploads into a capsule, for as long as the session lasts. */
  uploadsOf(id: string): UploadQueue {
    const queue = this.#uploads.get(id) ?? new UploadQueue();
    this.#uploads.set(id, queue);
    return queue;
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

  /** Changes the capsule's status; the caller tells the user. */
  async change(change: Change, { id }: CapsuleInfo): Promise<void> {
    const capsule = this.client.capsule(id);
    await this.store.during(id, changes[change].operation, async () => {
      if (change === "destroy") await capsule.destroy();
      else this.store.changed((await capsule[change]()).info);
    });
    if (change === "destroy") this.store.removed(id);
  }

  /** As `change`, with a toast. */
  async perform(change: Change, capsule: CapsuleInfo): Promise<void> {
    await this.change(change, capsule);
    this.toasts.done(`Capsule ${capsule.id} is ${changes[change].done}.`);
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
