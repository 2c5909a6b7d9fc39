/** The API reference to read and to try, out of the service's own OpenAPI document; nothing is fetched from elsewhere. */
import swaggerUi from "@fastify/swagger-ui";
import type { App } from "../route.ts";
import { protectPages } from "./page-headers.ts";

export function docsPage(app: App): void {
  protectPages(app);
  app.addHook("onRoute", (route) => {
    route.config = { ...route.config, open: true };
  });
  app.register(swaggerUi, {
    routePrefix: "/docs",
    theme: { title: "Capsule API" },
    logo: { type: "image/svg+xml", content: "" },
    uiConfig: {
      layout: "BaseLayout",
      docExpansion: "list",
      tryItOutEnabled: true,
      displayRequestDuration: true,
      persistAuthorization: false,
      defaultModelsExpandDepth: 0,
    },
  });
}
