/** A number that is read when the metrics are. */
import { Gauge, type Registry } from "prom-client";

export function registerGauge(name: string, help: string, read: () => number, registers: Registry[]): void {
  new Gauge({
    name,
    help,
    registers,
    collect() {
      this.set(read());
    },
  });
}
