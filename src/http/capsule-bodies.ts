/** Capsules as the API shows them. */
import type { AddressInfo } from "node:net";
import type { CapsuleView } from "../capsules/capsules.ts";
import type { NetworkPolicy } from "../network/policy.ts";
import { type PortDomain, portUrl } from "../network/port-domain.ts";
import type { Capsule } from "../wire/capsule.ts";
import type { Network } from "../wire/network.ts";
import type { App } from "./route.ts";
import { timestamp, timestampOrNull } from "./timestamps.ts";

export interface PortUrlOptions {
  domain: PortDomain;
  hasTls: boolean;
  /** Its own port, as long as it does not listen. */
  port: number;
  /** This host's name in its cluster; null: it is alone. */
  hostName: string | null;
}

export class CapsuleBodies {
  readonly #server: App["server"];
  readonly #options: PortUrlOptions;

  constructor(server: App["server"], options: PortUrlOptions) {
    this.#server = server;
    this.#options = options;
  }

  /** The URL of each port of a capsule, with `{port}` in its place. */
  portUrl(id: string): string {
    const { domain, hasTls, port } = this.#options;
    const address = this.#server.address() as AddressInfo | null;
    return portUrl({ domain, hasTls, listenPort: address?.port ?? port }, id);
  }

  of(view: CapsuleView): Capsule {
    return {
      id: view.id,
      name: view.name,
      labels: view.labels,
      status: view.status,
      template: view.template,
      vcpus: view.vcpus,
      memory_mb: view.memoryMb,
      disk_mb: view.diskMb,
      timeout_sec: view.timeoutSec,
      on_timeout: view.onTimeout,
      lifetime_sec: view.lifetimeSec,
      expires_at: timestampOrNull(view.expiresAt),
      on_expiry: view.onExpiry,
      retention_sec: view.retentionSec,
      auto_resume: view.autoResume,
      network: networkBody(view.network),
      port_url: this.portUrl(view.id),
      created_at: timestamp(view.createdAt),
      last_updated: timestamp(view.lastUpdated),
      started_at: timestampOrNull(view.startedAt),
      last_active_at: timestampOrNull(view.lastActiveAt),
      error_reason: view.errorReason,
      host: view.host === undefined ? this.#options.hostName : view.host,
    };
  }
}

/** With null for each value of a header. */
export function networkBody({ egress, allow, deny, publicPorts, hostHeader, inject }: NetworkPolicy): Network {
  const rules = inject.map(({ host, headers }) => ({
    host,
    headers: Object.fromEntries(headers.map((name) => [name, null])),
  }));
  return { egress, allow, deny, public_ports: publicPorts, host_header: hostHeader, inject: rules };
}
