-- Tells one gateway's requests in flight, and returns what the others have told lately.
-- KEYS: 1 a hash of gateways. ARGV: 1 the gateway, 2 its requests by backend as JSON, 3 milliseconds that a word counts.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], 10 * ARGV[3])
local all, out = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local at, load = string.match(all[i + 1], '^(%d+) (.*)$')
  if not at or now - tonumber(at) > tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    out[#out + 1] = load
  end
end
return out
