/** `fetch` by XMLHttpRequest, the only one that tells how much of a body has been sent. */

/** Statuses whose answers have no body. */
const bodiless = new Set([101, 204, 205, 304]);

export function uploadFetch(onProgress: (share: number) => void): typeof fetch {
  return (input, init = {}) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open(init.method ?? "GET", String(input));
      for (const [name, value] of new Headers(init.headers)) request.setRequestHeader(name, value);
      request.responseType = "arraybuffer";
      request.upload.onprogress = ({ loaded, total }) => onProgress(total === 0 ? 0 : loaded / total);
      request.onload = () => {
        const { status, response } = request;
        const body = bodiless.has(status) ? null : (response as ArrayBuffer);
        resolve(new Response(body, { status, headers: headersIn(request.getAllResponseHeaders()) }));
      };
      request.onerror = () => reject(new TypeError("Failed to fetch"));
      const { signal } = init;
      request.onabort = () => reject(signal?.reason ?? new TypeError("Failed to fetch"));
      if (signal?.aborted) return reject(signal.reason);
      signal?.addEventListener("abort", () => request.abort(), { once: true });
      request.send((init.body ?? null) as XMLHttpRequestBodyInit | null);
    });
}

function headersIn(lines: string): Headers {
  const headers = new Headers();
  for (const line of lines.trim().split("\r\n")) {
    const at = line.indexOf(":");
    if (at > 0) headers.append(line.slice(0, at), line.slice(at + 1).trim());
  }
  return headers;
}
