/** Metrics of the running capsules, read while a page shows them. */
import { useEffect } from "preact/hooks";
import type { CapsuleInfo, CapsuleMetric } from "../../src/sdk/sdk.ts";
import { useDashboard } from "../state/dashboard.ts";

/** A capsule has a point every ten seconds. */
const pauseMs = 10_000;

/** Id → its points of the last 15 minutes, of the first running ones. */
export function useRecentMetrics(capsules: readonly CapsuleInfo[]): ReadonlyMap<string, readonly CapsuleMetric[]> {
  const { recent } = useDashboard();
  const ids = capsules.filter(({ status }) => status === "running").map(({ id }) => id);
  const key = ids.join();
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    let isOver = false;
    const read = async () => {
      if (!document.hidden) await recent.update(ids, Date.now());
      if (!isOver) timer = setTimeout(read, pauseMs);
    };
    void read();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [key]);
  return recent.series.value;
}
