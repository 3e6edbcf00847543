-- One key's two token buckets (requests and tokens), refilled continuously over a minute, on the server's own clock.
-- KEYS: 1 the key's hash. ARGV: 1 requests per minute (0: no limit), 2 tokens per minute (0: no limit),
--       3 requests to take, 4 tokens to take (negative: give back), 5 '1' to take even where the bucket is short.
-- Levels are kept in units of 1/60,000,000, so that one microsecond refills exactly `limit` units.
-- Returns {allowed, level of requests, level of tokens, microseconds until allowed, 1 requests | 2 tokens were short | 0}.
local UNIT = 60000000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local limits = {tonumber(ARGV[1]), tonumber(ARGV[2])}
local wanted = {tonumber(ARGV[3]), tonumber(ARGV[4])}
local force = ARGV[5] == '1'
local stored = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
local elapsed = math.max(0, now - tonumber(stored[3] or now))
local levels, needs, wait, short, full = {}, {}, 0, 0, 0
for i = 1, 2 do
  local capacity = limits[i] * UNIT
  levels[i] = math.min(capacity, (tonumber(stored[i]) or capacity) + elapsed * limits[i])
  needs[i] = wanted[i] * UNIT
  if not force then needs[i] = math.min(needs[i], capacity) end
  if limits[i] > 0 and levels[i] < needs[i] and not force then
    local missing = math.ceil((needs[i] - levels[i]) / limits[i])
    if missing > wait then wait, short = missing, i end
  end
end
local allowed = short == 0
if allowed then
  for i = 1, 2 do
    local capacity = limits[i] * UNIT
    levels[i] = math.min(capacity, levels[i] - needs[i])
    if limits[i] > 0 then full = math.max(full, (capacity - levels[i]) / limits[i]) end
  end
  redis.call('HSET', KEYS[1], 'requests', string.format('%.0f', levels[1]), 'tokens', string.format('%.0f', levels[2]),
    'at', string.format('%.0f', now))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(full / 1000) + 1000))
end
return {allowed and 1 or 0, string.format('%.0f', levels[1]), string.format('%.0f', levels[2]),
  string.format('%.0f', wait), short}
