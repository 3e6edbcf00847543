-- Adds integer increments to per-minute hashes, once per (writer, sequence number).
-- KEYS: 1 the writer's last applied sequence number, 2.. the minute hashes.
-- ARGV: 1 sequence number (0: no check), 2 seconds to keep the writer's number, then for each minute hash:
--       Unix time at which it expires, number of fields, and that many pairs (field, increment).
-- Returns {1 applied | 0 seen before, increments that could not be applied}.
local seq = tonumber(ARGV[1])
if seq > 0 then
  local last = tonumber(redis.call('GET', KEYS[1]) or '0')
  if seq <= last then return {0, 0} end
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
local failed = 0
local at = 3
for i = 2, #KEYS do
  local expires, fields = ARGV[at], tonumber(ARGV[at + 1])
  at = at + 2
  for _ = 1, fields do
    local reply = redis.pcall('HINCRBY', KEYS[i], ARGV[at], ARGV[at + 1])
    if type(reply) == 'table' and reply.err then failed = failed + 1 end
    at = at + 2
  end
  redis.call('EXPIREAT', KEYS[i], expires)
end
return {1, failed}
