/** The current page, from the fragment of the address: back, forward, reload and bookmarks work without the server. */
import { type ReadonlySignal, signal } from "@preact/signals";

export const capsuleTabs = ["terminal", "files", "processes", "network", "metrics", "details"] as const;
export type CapsuleTab = (typeof capsuleTabs)[number];

export type Route =
  | { page: "capsules" }
  | { page: "capsule"; id: string; tab: CapsuleTab }
  | { page: "templates" }
  | { page: "keys" }
  | { page: "usage" }
  | { page: "audit"; capsule?: string };

/** An unknown address is the first page. */
export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page, id, tab] = path.split("/").map(decoded);
  switch (page) {
    case "capsules":
      if (!id) return { page };
      return { page: "capsule", id, tab: capsuleTabs.find((each) => each === tab) ?? "terminal" };
    case "templates":
    case "keys":
    case "usage":
      return { page };
    case "audit": {
      const capsule = new URLSearchParams(query).get("capsule");
      return capsule ? { page, capsule } : { page };
    }
    default:
      return { page: "capsules" };
  }
}

export function hrefOf(route: Route): string {
  switch (route.page) {
    case "capsule":
      return `#/capsules/${encodeURIComponent(route.id)}/${route.tab}`;
    case "audit":
      return route.capsule ? `#/audit?capsule=${encodeURIComponent(route.capsule)}` : "#/audit";
    default:
      return `#/${route.page}`;
  }
}

/** The token of a one-time link, `#token=…`; undefined: there is none. */
export function tokenIn(hash: string): string | undefined {
  return new URLSearchParams(hash.replace(/^#\/?/, "")).get("token") || undefined;
}

const current = signal<Route>({ page: "capsules" });
export const route: ReadonlySignal<Route> = current;

/** Updates `route` when the address changes. Called once, at the start. */
export function followAddress(): void {
  const read = () => {
    current.value = parseRoute(location.hash);
  };
  addEventListener("hashchange", read);
  read();
}

export function goTo(next: Route): void {
  location.hash = hrefOf(next);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
