-- Gives a lease back, if the holder has it.
-- KEYS  lease
-- ARGV  holder
-- gives 1 if the holder had it, else 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
