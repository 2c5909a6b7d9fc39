/** All sections of the API. The document has them in this order. */
import { closeQuery } from "./query.ts";
import type { App } from "./route.ts";
import { auditSection } from "./routes/audit.ts";
import { capsuleMetricsSection } from "./routes/capsule-metrics.ts";
import { capsulesSection } from "./routes/capsules.ts";
import { eventsSection } from "./routes/events.ts";
import { execSection } from "./routes/exec.ts";
import { fileArchiveSection } from "./routes/files/archive.ts";
import { fileChangesSection } from "./routes/files/change.ts";
import { fileExtractSection } from "./routes/files/extract.ts";
import { fileListSection } from "./routes/files/list.ts";
import { fileReadsSection } from "./routes/files/read.ts";
import { signedUrlsSection } from "./routes/files/signed.ts";
import { fileUrlSection } from "./routes/files/url.ts";
import { fileWritesSection } from "./routes/files/write.ts";
import { keysSection } from "./routes/keys.ts";
import { metricsSection } from "./routes/metrics.ts";
import { networkSection } from "./routes/network.ts";
import { dashboardSection, referenceSection, sdkSection } from "./routes/pages.ts";
import { portsSection } from "./routes/ports.ts";
import { processesSection } from "./routes/processes.ts";
import { healthSection, limitsSection } from "./routes/service.ts";
import { signInSection } from "./routes/sign-in.ts";
import { snapshotsSection } from "./routes/snapshots.ts";
import type { RouteContext, Section } from "./section.ts";
import { attachSocketSection } from "./sockets/attach.ts";
import { execSocketSection } from "./sockets/exec.ts";
import { ptySocketSection } from "./sockets/pty.ts";
import { tcpSocketSection } from "./sockets/tcp.ts";
import { watchSocketSection } from "./sockets/watch.ts";

const unversioned: readonly Section[] = [healthSection, metricsSection, dashboardSection, sdkSection, referenceSection];

const v1: readonly Section[] = [
  capsulesSection,
  capsuleMetricsSection,
  execSection,
  processesSection,
  fileReadsSection,
  fileListSection,
  fileChangesSection,
  fileArchiveSection,
  snapshotsSection,
  keysSection,
  eventsSection,
  auditSection,
  execSocketSection,
  attachSocketSection,
  ptySocketSection,
  watchSocketSection,
  portsSection,
  networkSection,
  tcpSocketSection,
  signInSection,
  limitsSection,
  fileUrlSection,
  fileWritesSection,
  fileExtractSection,
  signedUrlsSection,
];

export const sections: readonly Section[] = [...unversioned, ...v1];

export function registerSections(app: App, context: RouteContext): void {
  registerAll(app, unversioned, context);
  app.register(
    async (versioned: App) => {
      versioned.addHook("onRoute", closeQuery);
      registerAll(versioned, v1, context);
    },
    { prefix: "/v1" },
  );
}

function registerAll(app: App, list: readonly Section[], context: RouteContext): void {
  for (const { chapter, register } of list) {
    app.register(async (scope: App) => {
      scope.addHook("onRoute", (route) => {
        route.config = { ...route.config, chapter };
      });
      register(scope, context);
    });
  }
}
