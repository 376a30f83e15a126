// The service worker: keeps every file of one version, so that the page works offline.
importScripts("precache.js");

const { version, files } = self.DSFORGE;
const PREFIX = "dsforge-";

self.addEventListener("install", (event) => {
  const requests = files.map((file) => new Request(file, { cache: "no-cache" }));
  event.waitUntil(caches.open(PREFIX + version).then((cache) => cache.addAll(requests)));
});

self.addEventListener("activate", (event) => {
  const tidied = caches.keys().then((names) =>
    Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== PREFIX + version).map((name) => caches.delete(name))));
  event.waitUntil(tidied.then(() => self.clients.claim()));
});

self.addEventListener("message", (event) => {
  if (event.data === "take over") self.skipWaiting();
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== self.location.origin) return;
  event.respondWith(caches.open(PREFIX + version).then(async (cache) =>
    (await cache.match(event.request, { ignoreSearch: true })) ?? fetch(event.request)));
});
