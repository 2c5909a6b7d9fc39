/** Metrics that keep what they were told of each request. */
import type { MetricsService } from "../../src/http/metrics.ts";

export class CountedRequests implements MetricsService {
  /** Method, route and status of each. */
  readonly ended: string[] = [];
  readonly contentType = "text/plain";

  requestEnded(method: string, route: string, status: number): void {
    this.ended.push(`${method} ${route} ${status}`);
  }

  portRequestEnded(): void {}
  portBytesMoved(): void {}
  portWoke(): void {}
  socketClosed(): void {}

  async text(): Promise<string> {
    return "";
  }
}
