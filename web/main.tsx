/** Entry point of the dashboard: reads the address, restores the session, renders. */
import { render } from "preact";
import { App } from "./app.tsx";
import { updateTimes } from "./parts/time.tsx";
import { Account } from "./state/account.ts";
import { followAddress, tokenIn } from "./state/route.ts";

/** The token of a one-time link. It must not stay in the address bar, the history or a bookmark. */
function takeToken(): string | undefined {
  const token = tokenIn(location.hash);
  if (token !== undefined) history.replaceState(null, "", `${location.pathname}${location.search}`);
  return token;
}

const account = new Account();
const token = takeToken();
// A link that is opened in this tab changes only the fragment: the browser does not load the page again.
addEventListener("hashchange", () => {
  const later = takeToken();
  if (later !== undefined) void account.restore(later);
});
followAddress();
updateTimes();
void account.restore(token);
render(<App account={account} />, document.getElementById("app")!);
