/**
 * Where figures and spans come from: the floors below are wrapped by the composition root and know nothing of it. What
 * nobody asks to observe is not wrapped.
 */
import type { Host } from "../host/host.ts";
import type { CapsulesService } from "../http/services.ts";

/** What the host does to one capsule's VM that takes time and can fail. */
export type Transition = "boot" | "resume" | "pause" | "capture";

/** Does the work, and takes note of how long it took and whether it succeeded. */
export type Observe = <T>(deed: Transition, capsuleId: string, work: () => Promise<T>) => Promise<T>;

export function observeHost(host: Host, observe: Observe): Host {
  const observed: Partial<Host> = {
    start: (id, ...how) => observe("boot", id, () => host.start(id, ...how)),
    restore: (id, signal) => observe("resume", id, () => host.restore(id, signal)),
    save: (guest, purpose) => observe(purpose, guest.id, () => host.save(guest, purpose)),
  };
  return overlay(host, observed);
}

/** `began` is called when a command begins, in the foreground or not; what it returns, when the command is over. */
export function observeExecs(capsules: CapsulesService, began: (capsuleId: string) => () => void): CapsulesService {
  return overlay(capsules, {
    beginExec(id) {
      const ends = [began(id), capsules.beginExec(id)];
      return () => {
        for (const end of ends) end();
      };
    },
  });
}

/**
 * `target` with some methods replaced. The rest run on `target` itself, which has private fields. Made once: a proxy would
 * be asked at every call, and each request makes some.
 */
function overlay<T extends object>(target: T, methods: Partial<T>): T {
  const over = {};
  for (const name of new Set([target, Object.getPrototypeOf(target)].flatMap(Object.getOwnPropertyNames))) {
    const read = (): unknown => Reflect.get(target, name);
    const value = Object.hasOwn(methods, name) ? Reflect.get(methods, name) : read();
    Object.defineProperty(over, name, typeof value === "function" ? { value: value.bind(target) } : { get: read });
  }
  return over as T;
}
