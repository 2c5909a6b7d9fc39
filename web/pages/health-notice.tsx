/** The service's version below the navigation, and a notice above every page while it makes no capsule. */
import type { Health } from "../../src/wire/health.ts";
import { Icon } from "../parts/icon.tsx";
import { useQuery, useRereading } from "../parts/query.ts";
import { useDashboard } from "../state/dashboard.ts";
import { healthOf } from "../state/service.ts";

/** From one answer to the next request. */
const rereadMs = 30_000;

export function useHealth(): Health | undefined {
  const { client } = useDashboard();
  const query = useQuery(() => healthOf(client), []);
  useRereading(query, rereadMs);
  return query.value;
}

export function Version({ health }: { health: Health | undefined }) {
  if (health?.version === undefined) return null;
  const isWell = health.ready && health.creates;
  return (
    <p class="side-note wide-only">
      Capsule {health.version}, {isWell ? "healthy" : "makes no capsules now"}
    </p>
  );
}

export function HealthNotice({ health }: { health: Health | undefined }) {
  const isShown = health !== undefined && !(health.ready && health.creates);
  return (
    <div class="connection" role="status">
      {isShown && (
        <p class="notice">
          <Icon name="warning" /> The service makes no new capsules now:{" "}
          {health.reasons?.join("; ") || "it is not ready"}.
        </p>
      )}
    </div>
  );
}
