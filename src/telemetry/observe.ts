/**
 * Where figures and spans come from: the floors below are wrapped by the composition root and know nothing of it. What
 * nobody asks to observe is not wrapped.
 */
import type { Host } from "../host/host.ts";
import type { CapsulesService } from "../http/services.ts";

/** What the host does to one capsule's VM that takes time and can fail. */
export type Deed = "boot" | "resume" | "pause" | "capture";

/** Does the work, and takes note of how long it took and whether it succeeded. */
export type Observe = <T>(deed: Deed, capsuleId: string, work: () => Promise<T>) => Promise<T>;

export function observeHost(host: Host, observe: Observe): Host {
  const observed: Partial<Host> = {
    start: (id, ...how) => observe("boot", id, () => host.start(id, ...how)),
    restore: (id, unwanted) => observe("resume", id, () => host.restore(id, unwanted)),
    save: (guest, purpose) => observe(purpose, guest.id, () => host.save(guest, purpose)),
  };
  return overlay(host, observed);
}

/** `began` is called when a command begins, in the foreground or not; what it returns, when the command is over. */
export function observeExecs(capsules: CapsulesService, began: (capsuleId: string) => () => void): CapsulesService {
  return overlay(capsules, {
    execBegan(id) {
      const ends = [began(id), capsules.execBegan(id)];
      return () => {
        for (const end of ends) end();
      };
    },
  });
}

/** `target` with some methods replaced. The rest run on `target` itself, which has private fields. */
function overlay<T extends object>(target: T, methods: Partial<T>): T {
  const bound = new Map<PropertyKey, unknown>();
  return new Proxy(target, {
    get(_, name) {
      const known = bound.get(name);
      if (known !== undefined) return known;
      const value: unknown = Reflect.get(Object.hasOwn(methods, name) ? methods : target, name);
      if (typeof value !== "function") return value;
      const method: unknown = value.bind(target);
      bound.set(name, method);
      return method;
    },
  });
}
