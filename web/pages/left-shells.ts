/** Shells that this browser tab has started in a capsule: when the capsule's page is left, the page offers to end them. */
import { useEffect } from "preact/hooks";
import { hasCode } from "../../src/sdk/sdk.ts";
import { type Dashboard, useDashboard } from "../state/dashboard.ts";
import { count } from "../state/format.ts";
import { savedTerminals, saveTerminals } from "../state/saved-terminals.ts";

export function useLeftShells(id: string): void {
  const dashboard = useDashboard();
  useEffect(() => {
    dashboard.toasts.withdraw(id);
    // Once the terminals have closed and saved themselves.
    return () => queueMicrotask(() => offerEnd(dashboard, id));
  }, [id]);
}

function offerEnd(dashboard: Dashboard, id: string): void {
  const capsule = dashboard.store.find(id);
  const tags = savedTerminals(id).flatMap(({ tag, isJoined }) => (isJoined ? [] : [tag]));
  if (tags.length === 0 || capsule?.status !== "running") return;
  const place = capsule.name ?? id;
  const shells = tags.length === 1 ? "A shell is" : `${count(tags.length, "shell")} are`;
  dashboard.toasts.offer(`${shells} still running in ${place}.`, {
    about: id,
    button: tags.length === 1 ? "End it" : "End them",
    run: () => void dashboard.attempt(() => endShells(dashboard, id, tags)),
  });
}

async function endShells({ client }: Dashboard, id: string, tags: readonly string[]): Promise<void> {
  const left = savedTerminals(id).filter(({ tag }) => !tags.includes(tag));
  saveTerminals(id, left);
  await Promise.all(tags.map((tag) => endShell(client, id, tag)));
}

/** A session that has already ended is no error. */
export async function endShell(client: Dashboard["client"], id: string, tag: string): Promise<void> {
  await client
    .capsule(id)
    .process(tag)
    .kill()
    .catch((error) => {
      if (!hasCode(error, "not_found")) throw error;
    });
}
