/**
 * How long requests took, as a histogram for Prometheus. It is the one figure that every request pays for, and
 * prom-client's own histogram writes the labels and the bounds as text at each observation; here that is done when
 * somebody reads, and a request costs two look-ups and three additions.
 */
import type { Histogram } from "prom-client";

export interface Labels {
  method: string;
  route: string;
  status: number;
}

interface Series {
  labels: Labels;
  /** How many took as long as each bound at most, and longer than the one before; the last: longer than all. */
  counts: Float64Array;
  sum: number;
}

interface Value {
  metricName: string;
  labels: Record<string, string | number>;
  value: number;
}

/** Routes and methods are the server's own, and no request can add to them. */
export class RequestTimes {
  readonly name: string;
  readonly #help: string;
  /** Seconds, rising. */
  readonly #bounds: readonly number[];
  /** By route; of one route there are as many as there are methods and statuses. */
  readonly #series = new Map<string, Series[]>();

  constructor(name: string, help: string, bounds: readonly number[]) {
    this.name = name;
    this.#help = help;
    this.#bounds = bounds;
  }

  /** For a registry, which asks it for nothing but its name and its values. */
  get metric(): Histogram {
    return this as unknown as Histogram;
  }

  observe(method: string, route: string, status: number, seconds: number): void {
    const series = this.#seriesOf(method, route, status);
    const bounds = this.#bounds;
    let index = 0;
    while (index < bounds.length && seconds > (bounds[index] as number)) index++;
    series.counts[index] = (series.counts[index] as number) + 1;
    series.sum += seconds;
  }

  async get(): Promise<{ name: string; help: string; type: string; aggregator: string; values: Value[] }> {
    const values = [...this.#series.values()].flat().flatMap((series) => this.#valuesOf(series));
    return { name: this.name, help: this.#help, type: "histogram", aggregator: "sum", values };
  }

  #seriesOf(method: string, route: string, status: number): Series {
    let ofRoute = this.#series.get(route);
    if (ofRoute === undefined) {
      ofRoute = [];
      this.#series.set(route, ofRoute);
    }
    let series = ofRoute.find(({ labels }) => labels.status === status && labels.method === method);
    if (series === undefined) {
      series = { labels: { method, route, status }, counts: new Float64Array(this.#bounds.length + 1), sum: 0 };
      ofRoute.push(series);
    }
    return series;
  }

  #valuesOf({ labels, counts, sum }: Series): Value[] {
    let count = 0;
    const buckets = [...this.#bounds, "+Inf"].map((le, index) => {
      count += counts[index] as number;
      return { metricName: `${this.name}_bucket`, labels: { le, ...labels }, value: count };
    });
    return [
      ...buckets,
      { metricName: `${this.name}_sum`, labels: { ...labels }, value: sum },
      { metricName: `${this.name}_count`, labels: { ...labels }, value: count },
    ];
  }
}
